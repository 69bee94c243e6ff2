// Following a batch: rows of a step, the lanes they go to, a row cut into chunks, the tokens of one rank.
const MOST_BARS = 512;

class BatchSection {
  constructor(root, job, lights) {
    Object.assign(this, { root, job, lights, lane: 0, context: 0, rank: job.first });
    lights.listeners.push((target) => this.follow(target));
    root.addEventListener("click", (event) => {
      const bar = event.target.closest("[data-lane]");
      if (bar) lights.keep({ type: "value", name: "lane", value: Number(bar.dataset.lane), job: job.index });
    });
    root.addEventListener("pointerover", (event) => this.over(event));
    root.addEventListener("pointerleave", () => lights.point(null));
    this.draw();
  }

  over(event) {
    const bar = event.target.closest("[data-lane], [data-context]");
    if (!bar) return;
    const name = bar.dataset.lane === undefined ? "context" : "lane";
    this.lights.point({ type: "value", name, value: Number(bar.dataset[name]), job: this.job.index });
  }

  follow(target) {
    if (this.lights.rank !== null) this.rank = this.lights.rank;
    else if (target && target.type === "value" && ["lane", "context"].includes(target.name)) {
      const other = target.name === "lane" ? "context" : "lane";
      const kept = this.job.value(other, this.rank);
      const ranks = this.job.ranksWith(target.name, target.value);
      this.rank = ranks.find((rank) => this.job.value(other, rank) === kept) ?? ranks[0];
    } else return;
    this.draw();
  }

  draw() {
    const lane = this.job.value("lane", this.rank);
    const context = this.job.value("context", this.rank);
    const drawn = `${lane} ${context} ${this.rank}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    if (this.job.batch) this.drawRows(lane);
    this.drawLane(lane);
    this.drawRow(context);
    this.drawRank(context);
  }

  drawRows(lane) {
    const { batch, job } = this;
    const { num_microbatches: microbatches, rows_per_microbatch: rows, lane_rows: laneRows } = job.batch;
    const shown = Math.min(microbatches, 4);
    const strips = Array.from({ length: shown }, (_, m) => this.strip(m, rows, laneRows, lane));
    const rest = microbatches - shown;
    if (rest > 0) strips.push(make("p", { class: "rest" }, `and ${plural(rest, "microbatch", "microbatches")} more, dealt the same way`));
    find(".rows .drawing", this.root).replaceChildren(...strips);
  }

  strip(m, rows, laneRows, lane) {
    const first = m * rows;
    const bars = grouped(laneRows.length, MOST_BARS).map(([from, to]) => {
      const inside = from <= lane && lane < to;
      const [start, stop] = [laneRows[from][0], laneRows[to - 1][1]];
      const bar = make("div", { class: inside ? "bar on" : "bar", "data-lane": inside ? lane : from, style: `flex:${stop - start} 1 0` });
      const { fill, ink } = colour(from, laneRows.length);
      bar.style.background = fill;
      bar.style.color = ink;
      bar.title = `lane ${from}: rows ${rangesText([[first + start, first + stop]])} of the step`;
      if (laneRows.length <= 24) bar.append(make("b", {}, `lane ${from}`), make("span", {}, `${stop - start === 1 ? "row" : "rows"} ${rangesText([[first + start, first + stop]])}`));
      return bar;
    });
    const label = make("span", { class: "strip-name" }, `microbatch ${m}`);
    return make("div", { class: "strip" }, label, make("div", { class: "bars" }, ...bars));
  }

  drawLane(lane) {
    const ranks = this.job.ranksWith("lane", lane);
    const text = [make("b", {}, `Lane ${lane}`), ` is ${plural(ranks.length, "rank")}: ${ranksText(ranks, 10)}.`];
    if (this.job.batch) {
      const { num_microbatches: microbatches, rows_per_microbatch: rows, lane_rows: laneRows } = this.job.batch;
      const ranges = Array.from({ length: Math.min(microbatches, 4) }, (_, m) => laneRows[lane].map((row) => m * rows + row));
      const more = microbatches > 4 ? ", and so on" : "";
      text.push(` Of every step it takes rows ${rangesText(ranges)}${more}. All its ranks get these rows, each a part of their tokens.`);
    }
    find(".lane-words", this.root).replaceChildren(...text);
  }

  drawRow(context) {
    const { chunks, unit, length } = this.job.sequence;
    const total = length || unit;
    const pieces = chunks.flatMap((own, position) => own.map(([start, stop]) => ({ position, start, stop })));
    pieces.sort((a, b) => a.start - b.start);
    const bars = pieces.map(({ position, start, stop }) => {
      const { fill, ink } = colour(position, chunks.length);
      const bar = make("div", { class: position === context ? "bar on" : "bar", "data-context": position });
      Object.assign(bar.style, { flex: `${stop - start} 1 0`, background: fill, color: ink });
      bar.title = `context position ${position}: ${length ? "tokens" : "chunk"} ${rangesText([[start, stop]])}`;
      if (pieces.length === 1) bar.append(make("b", {}, "the whole row"));
      else if (pieces.length <= 32) bar.append(make("b", {}, String(position)));
      return bar;
    });
    find(".row .drawing", this.root).replaceChildren(
      make("div", { class: "bars tall" }, ...bars),
      make("div", { class: "ticks" }, ...(length ? tokenMarks(chunks[context], total) : [])),
    );
  }

  drawRank(context) {
    const { rank, job } = this;
    const { length, tokens_per_rank: tokens, slices } = job.sequence;
    const parts = [make("b", {}, `Rank ${rank}`), ` works on ${tokensText(job, context)} of each of these rows`];
    if (length && job.batch) {
      const rows = job.batch.micro_batch_size;
      parts.push(`: ${number(tokens)} tokens x ${plural(rows, "row")} = ${number(tokens * rows)} tokens a microbatch`);
    }
    parts.push(".");
    if (slices) {
      const tp = job.value("tp", rank);
      parts.push(` In norms and residuals, where sequence parallelism cuts once more, TP ${tp} of ${job.counts.tp} has tokens ${rangesText(slices[context][tp])}.`);
    }
    find(".rank-words", this.root).replaceChildren(...parts);
  }
}

/** A label below each chunk, chunks that touch taken as one; a second line where two would run together. */
function tokenMarks(chunks, total) {
  const joined = [];
  for (const [start, stop] of chunks) {
    const last = joined[joined.length - 1];
    if (last && last[1] === start) last[1] = stop;
    else joined.push([start, stop]);
  }
  const close = joined.length > 1 && (joined[1][0] - joined[0][1]) / total < 0.2;
  return joined.map(([start, stop], i) => {
    const middle = (100 * (start + stop)) / 2 / total;
    const shift = middle < 20 ? 0 : middle > 80 ? 100 : 50;
    const left = shift === 0 ? (100 * start) / total : shift === 100 ? (100 * stop) / total : middle;
    const style = `left:${left}%;transform:translateX(-${shift}%)`;
    return make("span", { class: close && i > 0 ? "below" : false, style }, rangesText([[start, stop]]));
  });
}

/** 0..count in at most `most` stretches of equal length: [from, to) pairs. */
function grouped(count, most) {
  const step = Math.ceil(count / most);
  return Array.from({ length: Math.ceil(count / step) }, (_, i) => [i * step, Math.min(count, (i + 1) * step)]);
}
