// Two jobs: a map each, one below the other, coloured alike.
const jobs = facts.jobs.map((data, index) => Object.assign(new Job(data), { index }));
[jobs[0].other, jobs[1].other] = [jobs[1], jobs[0]];
const section = find("#ranks");
const names = findAll("button[data-colouring]", section).map((button) => button.dataset.colouring);
const viewOf = (name) => (["lane", "context"].includes(name) ? "tokens" : "weights");

class PairMap extends RankMap {
  colourBy(name) {
    this.view = viewOf(name);
    this.root.dataset.view = this.view;
    super.colourBy(name);
    this.markChanged((rank) => this.differs(rank));
  }

  differs(rank) {
    const { other } = this.job;
    return !other.has(rank) || other.value(this.colouring, rank) !== this.job.value(this.colouring, rank);
  }

  toggle(index, open) {
    super.toggle(index, open);
    this.markChanged((rank) => this.differs(rank));
  }
}

const maps = jobs.map((job) => new PairMap(find(`.map[data-job="${job.index}"]`), job, viewOf(names[0]), names));
const lights = new Lights(maps);
maps.forEach((map) => map.closes && map.toggle(0, true));
wireZoom(find(".tools"), maps, section);
scrollTogether(maps);
maps.forEach((map) => wireMap(map, lights, maps));
const legends = maps.map((map) => new Legend(find(".legend", map.root), map, lights));
wireColourings(section, maps, legends);
wireFind(find(".find"), jobs, lights, maps);
const panels = jobs.map((job) => new Panel(find(`.panel [data-job="${job.index}"]`), job, lights, job.title));
panels.forEach((panel) => wirePanel(panel, lights));
const fade = find("#fade");
const fades = () => maps.forEach((map) => map.root.classList.toggle("fades", fade.checked && !map.closes));
fade.addEventListener("change", fades);
fades();
for (const row of findAll("[data-row-rank]")) {
  const target = { type: "rank", rank: Number(row.dataset.rowRank) };
  row.addEventListener("pointerenter", () => lights.point(target));
  row.addEventListener("pointerleave", () => lights.point(null));
  row.addEventListener("click", () => lights.keep(target));
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  lights.clear();
  panels.forEach((panel) => panel.empty());
});
new Terms(facts.glossary);
wireTheme(find(".theme"));
