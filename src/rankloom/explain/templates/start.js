// One job: both maps, the panel, and the sections below.
const job = new Job(facts);
const section = find("#ranks");
const maps = [
  new RankMap(find('.map[data-view="weights"]'), job, "weights", colouringsAt("weights")),
  new RankMap(find('.map[data-view="tokens"]'), job, "tokens", colouringsAt("tokens")),
];
const lights = new Lights(maps);

function colouringsAt(view) {
  return findAll(`.map[data-view="${view}"] button[data-colouring]`).map((button) => button.dataset.colouring);
}

if (job.world > MOST_CELLS) maps.forEach((map) => map.toggle(0, true));
wireZoom(find(".tools"), maps, section);
scrollTogether(maps);
for (const map of maps) {
  wireMap(map, lights, maps);
  wireColourings(map.root, [map], [new Legend(find(".legend", map.root), map, lights)]);
}
wireFind(find(".find"), [job], lights, maps);
const panel = new Panel(find(".panel"), job, lights);
wirePanel(panel, lights);
new BatchSection(find("#batch"), job, lights);
if (job.parameters.length) new WeightsSection(find("#weights"), job, lights);
wireGroups(find("#traffic"), job, lights);
for (const button of findAll("[data-show-call]")) {
  button.addEventListener("click", () => {
    find(`button[data-colouring="call:${button.dataset.showCall}"]`).click();
    section.scrollIntoView({ behavior: "smooth" });
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  lights.clear();
  panel.empty();
});
new Terms(facts.glossary);
wireTheme(find(".theme"));
