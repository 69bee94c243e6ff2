// What is pointed at, what is kept, and what that lights. A target is one of
//   {type: "rank", rank}   {type: "group", kind, group}   {type: "value", name, value}
//   {type: "slice", tp, shard, stages}   {type: "box", index}
// and, on a page with two jobs, `job`: the number of the one it belongs to.
class Lights {
  constructor(maps) {
    this.maps = maps;
    this.kept = null;
    this.pointed = null;
    this.listeners = [];
  }

  get target() {
    return this.pointed || this.kept;
  }

  /** The rank that is pointed at or kept; otherwise null. */
  get rank() {
    const target = [this.pointed, this.kept].find((each) => each && each.type === "rank");
    return target ? target.rank : null;
  }

  point(target) {
    if (sameTarget(target, this.pointed)) return;
    this.pointed = target;
    this.show();
  }

  /** Keep a target lit; the same one again lets it go. */
  keep(target) {
    this.kept = sameTarget(target, this.kept) ? null : target;
    this.show();
  }

  clear() {
    this.kept = null;
    this.pointed = null;
    this.show();
  }

  show() {
    const target = this.target;
    for (const map of this.maps) {
      map.light(target && litRanks(target, map.job, map.view));
      if (target && target.type === "rank") map.mark(target.rank);
      map.select(this.kept && this.kept.type === "rank" ? this.kept.rank : null);
    }
    for (const listener of this.listeners) listener(target);
  }
}

function sameTarget(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** Which ranks a target lights in a view, and for which kinds of groups: rank -> kinds. */
function litRanks(target, job, view) {
  const kindsOf = new Map();
  if (target.job !== undefined && target.job !== job.index) return kindsOf;
  const add = (ranks, kind) => {
    for (const rank of ranks) {
      if (kindsOf.has(rank)) kindsOf.get(rank).push(kind);
      else kindsOf.set(rank, [kind]);
    }
  };
  if (target.type === "rank" && job.has(target.rank)) {
    for (const kind of job.kinds(view)) add(job.members(kind, job.groupOf(kind, target.rank)), kind);
  } else if (target.type === "group") add(job.members(target.kind, target.group) || [], target.kind);
  else if (target.type === "value") add(job.ranksWith(target.name, target.value), target.name);
  else if (target.type === "box") add(blockRanks(job.blocks[target.index]), "box");
  else if (target.type === "slice") add(job.sliceRanks(target), "slice");
  return kindsOf;
}
