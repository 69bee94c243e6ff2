// One parameter, drawn to scale: how TP and gtp_remat cut it, and the part that one rank stores.
const ROLES = {
  embedding: "Embedding",
  column: "Column-parallel weight",
  row: "Row-parallel weight",
  head: "Output head",
  column_bias: "Column-parallel bias",
  row_bias: "Row-parallel bias",
  norm: "Norm",
  head_norm: "Norm of a head",
};
const DRAWING = { width: 460, height: 330, most: 1024 };

class WeightsSection {
  constructor(root, job, lights) {
    Object.assign(this, { root, job, lights, rank: job.first, chosen: 0 });
    this.select = find("select", root);
    job.parameters.forEach((p, index) => {
      this.select.append(make("option", { value: index }, `${p.name}${timesText(p, job.counts.pp)}`));
    });
    const layer = job.parameters.findIndex((p) => p.count > 1 && p.sharded);
    this.select.value = String(Math.max(0, layer));
    this.select.addEventListener("change", () => this.draw());
    const drawing = find(".drawing", root);
    drawing.addEventListener("pointerover", (event) => this.over(event.target));
    drawing.addEventListener("pointerleave", () => lights.point(null));
    drawing.addEventListener("click", (event) => {
      const target = this.target(event.target);
      if (target) lights.keep(target);
    });
    lights.listeners.push((target) => this.follow(target));
    this.draw();
  }

  target(element) {
    const box = element.closest("[data-shard]");
    if (!box) return null;
    const p = this.parameter;
    return {
      type: "slice",
      tp: p.tp_dim === null ? null : Number(box.dataset.tp),
      shard: p.sharded ? Number(box.dataset.shard) : null,
      stages: p.stages.map(({ stage }) => stage),
    };
  }

  get parameter() {
    return this.job.parameters[Number(this.select.value)];
  }

  over(element) {
    const target = this.target(element);
    if (target) this.lights.point(target);
  }

  follow(target) {
    let rank = this.lights.rank;
    if (target && target.type === "slice") {
      const ranks = this.job.sliceRanks(target);
      const stage = this.job.value("pp", this.rank);
      rank = ranks.find((each) => this.job.value("pp", each) === stage) ?? ranks[0];
    }
    if (rank === null || rank === undefined || rank === this.rank) return;
    this.rank = rank;
    this.draw();
  }

  draw() {
    const p = this.parameter;
    const tp = this.job.value("tp", this.rank);
    const shard = p.sharded ? this.job.value("weight_shard", this.rank) : 0;
    const stage = this.job.value("pp", this.rank);
    const held = p.stages.find((each) => each.stage === stage);
    this.drawnStage = (held || p.stages[0]).stage;
    const said = held ? boxWords(p, boxOf(p, tp, shard)) + layersText(held, this.job.counts.pp) : notHeldText(p, stage);
    find(".drawing", this.root).replaceChildren(this.picture(p, tp, shard, held !== undefined));
    find(".cut-words", this.root).textContent = cutWords(p, this.job.counts);
    find(".box-words", this.root).replaceChildren(make("b", {}, `Rank ${this.rank}`), said);
    find(".padding-words", this.root).textContent = paddingWords(p, this.job.counts);
  }

  picture(p, tp, shard, held) {
    const [rows, cols] = [p.shape[0], p.shape[1] || Math.max(1, p.shape[0] / 12)];
    const scale = Math.min(DRAWING.width / cols, DRAWING.height / rows);
    let [width, height] = [cols * scale, rows * scale];
    const squeezed = width < 120 || height < 60;
    if (squeezed) [width, height] = [Math.max(width, 120), Math.max(height, 60)];
    const svg = make("svg", {
      viewBox: `-26 -24 ${width + 76} ${height + 50}`,
      style: `width:${width + 76}px`,
      role: "img",
      "aria-label": `${p.name}, ${p.shape.join(" by ")}`,
    });
    const x = (col) => (col / cols) * width;
    const y = (row) => (row / rows) * height;
    svg.append(...this.slices(p, x, y, width), ...this.parts(p, x, y, width, height), make("rect", { class: "outline", x: 0, y: 0, width, height }));
    const [top, bottom, left, right] = corners(p, tp, shard, cols);
    if (held && bottom > top) svg.append(make("rect", { class: "mine", x: x(left), y: y(top), width: x(right) - x(left), height: Math.max(1.5, y(bottom) - y(top)) }));
    svg.append(make("text", { x: width / 2, y: -9, "text-anchor": "middle" }, p.shape.length > 1 ? `${number(p.shape[1])} columns` : ""));
    svg.append(make("text", { x: -10, y: height / 2, "text-anchor": "middle", transform: `rotate(-90 -10 ${height / 2})` }, `${number(rows)} rows`));
    if (squeezed) svg.append(make("text", { x: 0, y: height + (p.tp_dim === 1 ? 26 : 15), class: "small" }, "rows and columns each to their own scale"));
    return svg;
  }

  /** The colour of the ranks that store a slice, as on the map that is coloured by the part they store. */
  partColour(tp, shard) {
    const { job } = this;
    if (!this.partAt) {
      const parts = new Map();
      for (const rank of job.ranks) {
        const key = ["tp", "weight_shard", "pp"].map((name) => job.value(name, rank)).join();
        if (!parts.has(key)) parts.set(key, job.value("part", rank));
      }
      this.partAt = parts;
    }
    return colour(this.partAt.get(`${tp},${shard},${this.drawnStage}`), job.count("part"));
  }

  slices(p, x, y, width) {
    const drawn = [];
    const tps = p.tp_dim === null ? [0] : Array.from({ length: this.job.counts.tp }, (_, i) => i);
    const shards = p.rows[0].length;
    for (const tp of tps) {
      for (const [from, to] of grouped(shards, Math.max(1, Math.floor(DRAWING.most / tps.length)))) {
        const [top, , left, right] = corners(p, tp, from, p.shape[1] || 1);
        const bottom = corners(p, tp, to - 1, 1)[1];
        if (bottom <= top) continue;
        const thin = tps.length * shards > 48;
        const rect = make("rect", {
          class: thin ? "slice thin" : "slice",
          x: x(left),
          y: y(top),
          width: p.shape.length > 1 ? x(right) - x(left) : width,
          height: y(bottom) - y(top),
          "data-tp": tp,
          "data-shard": from,
        });
        const { fill, ink } = p.sharded ? this.partColour(tp, from) : { fill: "var(--whole)" };
        rect.style.fill = fill;
        drawn.push(rect);
        const [wide, high] = [Number(rect.getAttribute("width")), Number(rect.getAttribute("height"))];
        const label = to - from === 1 && p.sharded ? sliceLabel(tp, from, this.job.counts) : "";
        if (label && wide > 12 + 7 * label.length && high > 13) {
          const at = { class: "on-slice", x: x(left) + wide / 2, y: y(top) + high / 2 + 4, "text-anchor": "middle" };
          drawn.push(make("text", { ...at, style: `fill:${ink}` }, label));
        }
      }
    }
    return drawn;
  }
}

/** A label for each part that TP cuts, and a line between two of them. */
WeightsSection.prototype.parts = function parts(p, x, y, width, height) {
  const count = this.job.counts.tp;
  if (p.tp_dim === null || count === 1 || count > 16) return [];
  const ends = p.rows[0].length - 1;
  return Array.from({ length: count }, (_, tp) => tp).flatMap((tp) => {
    const [top, , left] = corners(p, tp, 0, 1);
    const [, bottom, , right] = corners(p, tp, p.sharded ? ends : 0, 1);
    const along = p.tp_dim === 0;
    const label = along
      ? make("text", { class: "of-tp", x: width + 8, y: (y(top) + y(bottom)) / 2 + 4 }, `TP ${tp}`)
      : make("text", { class: "of-tp", x: (x(left) + x(right)) / 2, y: height + 14, "text-anchor": "middle" }, count > 8 ? String(tp) : `TP ${tp}`);
    if (tp === 0) return [label];
    const line = along
      ? { x1: 0, x2: width, y1: y(top), y2: y(top) }
      : { x1: x(left), x2: x(left), y1: 0, y2: height };
    return [label, make("line", { class: "edge", ...line })];
  });
};

/** [top, bottom, left, right] of a slice in rows and columns of the whole parameter. */
function corners(p, tp, shard, cols) {
  const rows = p.rows.length > 1 ? p.rows[tp] : p.rows[0];
  const across = p.cols.length === 0 ? [0, cols] : p.cols.length > 1 ? p.cols[tp] : p.cols[0];
  return [...rows[p.sharded ? shard : 0], ...across];
}

function boxOf(p, tp, shard) {
  const [top, bottom, left, right] = corners(p, tp, shard, 1);
  return { rows: [top, bottom], cols: p.shape.length > 1 ? [left, right] : null };
}

/** "0" to "3" of the weight shards; with TP too, "1.3" is the one of TP 1. TP alone has labels beside it. */
function sliceLabel(tp, shard, counts) {
  if (counts.weight_shard === 1) return "";
  return counts.tp > 1 ? `${tp}.${shard}` : String(shard);
}

/** "  (32 layers over 4 stages)" or "  (stage 3)", behind the name of a parameter. */
function timesText(p, numStages) {
  const layers = p.count > 1 ? plural(p.count, "layer") : "";
  if (numStages === 1) return layers && `  (${layers})`;
  const stages = p.stages.map(({ stage }) => stage);
  if (stages.length === 1) return `  (${layers && `${layers} `}${layers && "in "}stage ${stages[0]})`;
  return layers ? `  (${layers} over ${stages.length} stages)` : `  (stages ${stages.join(" and ")})`;
}

/** Of which layers a rank stores it; with one stage that is all of them, and not said. */
function layersText({ stage, layers }, numStages) {
  if (numStages === 1) return "";
  if (!layers) return ` Stage ${stage} holds it.`;
  const [start, stop] = layers;
  return stop - start === 1 ? ` That is for layer ${start}, the one of stage ${stage}.` : ` The same for each of layers ${start}–${stop - 1}, the layers of stage ${stage}.`;
}

function notHeldText(p, stage) {
  const holders = p.stages.map((each) => each.stage);
  return ` is in stage ${stage} and holds no part of it: ${holders.length > 1 ? "stages" : "stage"} ${ranksText(holders)} ${holders.length > 1 ? "do" : "does"}.`;
}

function cutWords(p, counts) {
  const dim = p.tp_dim === null ? null : p.tp_dim === 0 ? "rows" : "columns";
  const byTp = counts.tp === 1 ? [] : dim ? [`TP cuts its ${dim} ${counts.tp} ways`] : ["every TP rank has it whole"];
  const byRemat = counts.weight_shard === 1 ? [] : p.sharded ? [`gtp_remat cuts the rows${counts.tp > 1 && dim ? " of each part" : ""} ${counts.weight_shard} ways`] : ["gtp_remat does not cut it"];
  const cuts = [...byTp, ...byRemat];
  const labels = p.sharded && counts.tp > 1 && counts.weight_shard > 1 ? " Slices are numbered TP.weight shard." : "";
  return `${ROLES[p.role]}, ${p.shape.map(number).join(" × ")}: ${cuts.length ? cuts.join("; ") : "not cut"}.${labels}`;
}

function boxWords(p, { rows, cols }) {
  const [count, width] = [rows[1] - rows[0], cols ? cols[1] - cols[0] : 1];
  if (count <= 0) return " stores only padding of it.";
  const whole = count === p.shape[0] && (!cols || width === p.shape[1]);
  const across = !cols ? "" : width === p.shape[1] ? `, all ${number(width)} columns` : `, columns ${rangesText([cols])}`;
  return whole ? ` stores it whole: ${number(count * width)} values.` : ` stores rows ${rangesText([rows])}${across}: ${number(count * width)} of ${number(p.shape.reduce((a, b) => a * b))} values.`;
}

function paddingWords(p, counts) {
  if (!p.sharded) return "";
  const notes = [];
  if (p.tp_dim === 0 && p.tp_local_shape[0] * counts.tp > p.shape[0]) {
    notes.push(`${number(p.shape[0])} rows over TP ${counts.tp} are ${number(p.tp_local_shape[0])} each, the last with ${number(p.tp_local_shape[0] * counts.tp - p.shape[0])} of padding`);
  }
  if (p.gathered_shape[0] > p.tp_local_shape[0]) {
    notes.push(`${number(p.tp_local_shape[0])} rows over gtp_remat ${counts.weight_shard} are ${number(p.shard_shape[0])} each, with ${number(p.gathered_shape[0] - p.tp_local_shape[0])} of padding in all`);
  }
  return notes.length ? `Padding: ${notes.join("; ")}.` : "No padding.";
}
