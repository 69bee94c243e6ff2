// Facts and small helpers. Ranks, lanes and groups all come from the facts; nothing here computes one.
const facts = JSON.parse(document.getElementById("facts").textContent);

const find = (selector, root = document) => root.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element with attributes and children; text is always text, never markup. */
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line", "text", "g", "title", "path"].includes(name);
  const element = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const number = (value) => value.toLocaleString("en-US");
const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many || one + "s"}`;

/** Half-open ranges in words, both ends included: "32–63 and 192–223". */
function rangesText(ranges) {
  const joined = [];
  for (const [start, stop] of ranges) {
    const last = joined[joined.length - 1];
    if (last && last[1] === start) last[1] = stop;
    else joined.push([start, stop]);
  }
  const texts = joined.map(([a, b]) => (b - a === 1 ? number(a) : `${number(a)}–${number(b - 1)}`));
  return texts.length < 2 ? texts.join("") : `${texts.slice(0, -1).join(", ")} and ${texts[texts.length - 1]}`;
}

/** Ascending ranks in words, unbroken runs as first–last, at most `limit` runs. */
function ranksText(ranks, limit = 6) {
  const runs = [];
  for (const rank of ranks) {
    const last = runs[runs.length - 1];
    if (last && last[1] === rank - 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  const texts = runs.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`));
  if (texts.length <= limit) return texts.join(", ");
  return `${texts.slice(0, limit - 2).join(", ")}, … ${texts[texts.length - 1]}`;
}

// Ranks that store the same part of the weights are a group of this kind.
const SAME_PART = "replica";

/** One job: where its ranks stand and which groups they are in. */
class Job {
  constructor(data) {
    Object.assign(this, data);
    this.lists = new Map();
  }

  get ranks() {
    return Array.from({ length: this.world }, (_, i) => this.first + i);
  }

  has(rank) {
    return Number.isInteger(rank) && rank >= this.first && rank < this.first + this.world;
  }

  /** The coordinate or index `name` of a rank. A call's piece is named "call:<its number>". */
  value(name, rank) {
    if (name === "part") return this.groupOf(SAME_PART, rank);
    const values = name.startsWith("call:") ? this.calls[Number(name.slice(5))].pieces : this.at[name];
    return typeof values === "number" ? values : values[rank - this.first];
  }

  /** How many different values `name` has. */
  count(name) {
    if (name === "part") return this.groups[SAME_PART].number;
    return name.startsWith("call:") ? this.calls[Number(name.slice(5))].number : this.counts[name];
  }

  /** How many colours `name` needs: two jobs on a page share theirs. */
  scale(name) {
    return Math.max(this.count(name), this.other && !name.startsWith("call:") ? this.other.count(name) : 0);
  }

  groupOf(kind, rank) {
    const of = this.groups[kind].of;
    return typeof of === "number" ? of : of[rank - this.first];
  }

  /** The ranks of a group, ascending. */
  members(kind, group) {
    const of = this.groups[kind].of;
    return this.listed(`group ${kind}`, (rank) => (typeof of === "number" ? of : of[rank - this.first])).get(group);
  }

  /** What tells the parts of the weights apart. */
  get cuts() {
    return ["tp", "weight_shard", "pp"].filter((name) => this.counts[name] > 1);
  }

  /** Where a part of the weights is cut out: [name, number] of each of `cuts`. */
  partOf(value) {
    const [rank] = this.ranksWith("part", value);
    return this.cuts.map((name) => [name, this.value(name, rank)]);
  }

  /** The ranks that store a slice of a parameter, ascending; null: it is not cut that way. */
  sliceRanks({ tp, shard, stages }) {
    const at = (name, rank, wanted) => wanted === null || this.value(name, rank) === wanted;
    return this.ranks.filter((rank) => at("tp", rank, tp) && at("weight_shard", rank, shard) && stages.includes(this.value("pp", rank)));
  }

  /** The ranks with a value, ascending. */
  ranksWith(name, value) {
    return this.listed(`value ${name}`, (rank) => this.value(name, rank)).get(value) || [];
  }

  listed(key, valueOf) {
    if (!this.lists.has(key)) {
      const lists = new Map();
      for (const rank of this.ranks) {
        const value = valueOf(rank);
        if (lists.has(value)) lists.get(value).push(rank);
        else lists.set(value, [rank]);
      }
      this.lists.set(key, lists);
    }
    return this.lists.get(key);
  }

  /** The kinds of groups that a map shows, those of one rank too. */
  kinds(view) {
    return Object.keys(this.groups).filter((kind) => this.groups[kind].maps.includes(view));
  }

  blockOf(rank) {
    if (!this.blockIndex) {
      this.blockIndex = new Int32Array(this.world);
      this.blocks.forEach((block, index) => {
        for (const each of blockRanks(block)) this.blockIndex[each - this.first] = index;
      });
    }
    return this.blockIndex[rank - this.first];
  }
}

function* blockRanks(block) {
  for (const [, runs] of block.nodes) {
    for (const [first, count] of runs) for (let i = 0; i < count; i++) yield first + i;
  }
}

const partText = (job, value) => job.partOf(value).map(([name, at]) => `${NAMES[name]} ${at}`).join(", ");

const SHORT = { weight_shard: "shard", replica: "copy", tp: "TP", pp: "stage", lane: "lane", context: "ctx" };
const NAMES = {
  weight_shard: "weight shard",
  replica: "replica",
  tp: "TP",
  pp: "stage",
  lane: "lane",
  context: "context",
};
