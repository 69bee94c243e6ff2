// The panel below the maps: what is pointed at or kept, in words, and its groups as chips.
const CHIPS = ["tp", "gtp_remat", "tp_gtp_remat", "replica", "context", "batch", "lane", "pp"];

class Panel {
  constructor(root, job, lights, where = "") {
    Object.assign(this, { root, job, lights, where });
    this.rank = null;
    lights.listeners.push((target) => this.show(target));
    this.empty();
  }

  /** What was shown last stays when nothing is lit, so that its chips can be reached; Escape empties. */
  show(target) {
    const { kept } = this.lights;
    this.root.classList.toggle("kept", kept !== null && sameTarget(target, kept));
    this.root.classList.toggle("last", target === null);
    if (target !== null && !this.holds(target)) this.fill(target);
    for (const chip of findAll(".chip", this.root)) {
      chip.setAttribute("aria-pressed", String(kept !== null && sameTarget(chipTarget(chip, this.job), kept)));
    }
  }

  /** Whether the rank that is shown already is the one, or a group is one of its groups. */
  holds(target) {
    if (target.type === "rank") return this.rank === target.rank;
    if (target.type !== "group" || this.rank === null) return false;
    return CHIPS.includes(target.kind) && this.job.groupOf(target.kind, this.rank) === target.group;
  }

  empty() {
    this.rank = null;
    this.put("empty", "No rank chosen", this.hint());
  }

  fill(target) {
    this.rank = target.type === "rank" ? target.rank : null;
    if (target.job !== this.job.index && target.job !== undefined) this.empty();
    else if (target.type === "rank" && !this.job.has(target.rank)) this.put("empty", `Rank ${target.rank}`, make("p", { class: "words" }, `is not in ${this.where}.`));
    else if (target.type === "rank") this.showRank(target.rank);
    else if (target.type === "group") this.showRanks(this.groupTitle(target), this.job.members(target.kind, target.group));
    else if (target.type === "value") this.showRanks(this.valueTitle(target), this.job.ranksWith(target.name, target.value));
    else if (target.type === "slice") this.showSlice(target);
    else if (target.type === "box") this.showBox(this.job.blocks[target.index]);
  }

  put(kind, title, ...content) {
    this.root.dataset.shows = kind;
    this.root.replaceChildren(make("h3", {}, title), ...content);
  }

  hint() {
    return make("p", { class: "words" }, "Point at a rank to see its groups in both maps. A click or Enter keeps it, arrow keys move, Escape lets go.");
  }

  showRank(rank) {
    const title = make("span", {}, "Rank ", make("b", {}, String(rank)), this.where && make("small", {}, this.where));
    this.put("rank", title, make("p", { class: "words" }, this.rankWords(rank)), this.coordinates(rank), this.chips(rank));
  }

  rankWords(rank) {
    const { job } = this;
    const at = (name) => job.value(name, rank);
    const { counts } = job;
    const parts = [
      counts.weight_shard > 1 ? `weight shard ${at("weight_shard")} (of ${counts.weight_shard})` : "",
      counts.tp > 1 ? `${counts.weight_shard > 1 ? "of " : ""}TP part ${at("tp")} (of ${counts.tp})` : "",
    ];
    const slice = `Stores ${parts.filter(Boolean).join(" ") || "the weights whole"}`;
    const copy = counts.replica > 1 ? `, in copy ${at("replica")} (of ${counts.replica})` : "";
    const stage = counts.pp > 1 ? `, in pipeline stage ${at("pp")} (of ${counts.pp})` : "";
    const lane = counts.lane > 1 ? `lane ${at("lane")} (of ${counts.lane})` : "the only lane";
    return `${slice}${copy}${stage}. Trains on ${lane}, ${tokensText(job, at("context"))} of each row.`;
  }

  coordinates(rank) {
    const names = ["lane", "context", "weight_shard", "replica", "tp", "gtp_seq", "gtp_batch", "cp", "dp", "pp", "domain", "node"];
    const list = make("dl", { class: "coordinates" });
    for (const name of names) {
      const value = this.job.value(name, rank);
      if (name === "node" && value < 0) continue;
      const label = name === "domain" ? "NVLink domain" : name.replace("_", " ");
      list.append(make("div", { "data-name": name }, make("dt", {}, label), make("dd", {}, value < 0 ? "not known" : String(value))));
    }
    return list;
  }

  chips(rank) {
    const items = CHIPS.map((kind) => {
      const group = this.job.groupOf(kind, rank);
      const members = this.job.members(kind, group);
      const chip = make("button", { type: "button", class: "chip", "data-kind": kind, "data-group": group });
      if (members.length === 1) chip.classList.add("alone");
      chip.append(make("span", { class: "mark" }), make("b", {}, kind), ` ${members.length === 1 ? "alone" : ranksText(members, 8)}`);
      return chip;
    });
    return make("div", { class: "chips", role: "group", "aria-label": `groups of rank ${rank}` }, ...items);
  }

  groupTitle({ kind, group }) {
    const { number: count, size } = this.job.groups[kind];
    return `${kind} group ${group} of ${number(count)}, ${plural(size, "rank")}`;
  }

  valueTitle({ name, value }) {
    if (name.startsWith("call:")) return value < 0 ? "Never called" : `Piece ${value}`;
    if (name === "part") return `Part of the weights: ${partText(this.job, value)}`;
    const title = `${NAMES[name]} ${value}`;
    return `${title[0].toUpperCase()}${title.slice(1)} of ${number(this.job.count(name))}`;
  }

  showSlice(target) {
    const { counts } = this.job;
    const { tp, shard, stages } = target;
    const cuts = [
      tp !== null && counts.tp > 1 ? `TP ${tp}` : "",
      shard !== null && counts.weight_shard > 1 ? `weight shard ${shard}` : "",
      stages.length < counts.pp ? `stage ${ranksText(stages)}` : "",
    ].filter(Boolean);
    this.showRanks(cuts.length ? `Slice: ${cuts.join(", ")}` : "The whole of it", this.job.sliceRanks(target));
  }

  showRanks(title, ranks) {
    const words = `${plural(ranks.length, "rank")}: ${ranksText(ranks, 24)}`;
    this.put("ranks", title, make("p", { class: "words" }, words));
  }

  showBox(block) {
    const ranks = [...blockRanks(block)];
    const span = (name) => ranksText([...new Set(ranks.map((rank) => this.job.value(name, rank)))].sort((a, b) => a - b), 6);
    const list = make("dl", { class: "coordinates" });
    for (const name of ["lane", "context", "weight_shard", "replica", "tp", "pp"]) {
      list.append(make("div", {}, make("dt", {}, name.replace("_", " ")), make("dd", {}, span(name))));
    }
    this.put("box", block.label, make("p", { class: "words" }, `${plural(ranks.length, "rank")}: ${ranksText(ranks)}. Enter or a click opens it.`), list);
  }
}

function chipTarget(chip, job) {
  return { type: "group", kind: chip.dataset.kind, group: Number(chip.dataset.group), job: job.index };
}

/** The tokens of a context position in words: "tokens 32–63 and 192–223". */
function tokensText(job, context) {
  const { length, unit, chunks } = job.sequence;
  if (unit === 1) return length ? `all ${number(length)} tokens` : "all tokens";
  if (length) return `tokens ${rangesText(chunks[context])}`;
  return `chunks ${rangesText(chunks[context])} of ${unit}`;
}
