// A map of the ranks: a box a domain, a cell a rank, one colouring at a time. In large worlds a box is closed,
// a miniature of its ranks, until it is opened.
const ZOOMS = 6;
const FIRST_ZOOM_OF_CLOSED = 2;
const MOST_CELLS = 2048;
const MOST_NAMED_BOXES = 600;

class RankMap {
  constructor(root, job, view, colourings) {
    Object.assign(this, { root, job, view, colourings });
    this.cells = new Map();
    this.lit = new Map();
    this.litTiles = new Set();
    this.closes = job.world > MOST_CELLS;
    root.classList.toggle("closes", this.closes);
    root.classList.toggle("dense", this.closes && job.blocks.length > MOST_NAMED_BOXES);
    this.viewport = find(".viewport", root);
    this.boxes = job.blocks.map((block, index) => this.makeBox(block, index));
    this.viewport.append(...this.boxes);
    this.colourBy(colourings[0]);
    this.cursor = null;
    this.takesFocus(this.viewport.querySelector(".cell, .tile"));
  }

  makeBox(block, index) {
    const ranks = [...blockRanks(block)];
    const box = make("div", { class: "box", role: "group", "aria-label": block.label, "data-block": index });
    box.ranks = ranks;
    box.append(make("div", { class: "box-name", title: block.label, "data-first": ranks[0] }));
    const nodes = block.nodes.map(([node]) => node);
    const node = nodes.length === 1 && nodes[0] >= 0 ? `, node ${nodes[0]}` : "";
    find(".box-name", box).append(make("span", { class: "long" }, block.label + node));
    find(".box-name", box).append(make("span", { class: "short" }, String(ranks[0])));
    if (this.closes) this.fillClosed(box);
    else this.fillOpen(box);
    return box;
  }

  fillOpen(box) {
    const block = this.job.blocks[Number(box.dataset.block)];
    const inside = block.nodes.map(([node, runs]) => {
      const ranks = runs.flatMap(([first, count]) => Array.from({ length: count }, (_, i) => first + i));
      const named = node >= 0 && block.nodes.length > 1;
      const name = named ? make("div", { class: "node-name" }, `node ${node}`) : null;
      const columns = Math.min(ranks.length, named ? 4 : ranks.length > 64 ? 16 : 8);
      const grid = make("div", { class: "cells", style: `--columns:${columns}` }, ...ranks.map((r) => this.makeCell(r)));
      return make("div", { class: named ? "node" : "node bare" }, name, grid);
    });
    box.append(make("div", { class: "nodes" }, ...inside));
  }

  fillClosed(box) {
    box.classList.add("closed");
    const { label } = this.job.blocks[Number(box.dataset.block)];
    const tile = make("div", { class: "tile", role: "option", tabindex: -1, "aria-selected": "false", "data-block": box.dataset.block });
    tile.setAttribute("aria-label", `${label}, ranks ${ranksText(box.ranks)}; Enter opens it`);
    box.append(tile);
    if (this.colouring) this.paintTile(tile, box);
  }

  /** Open a closed box, or close an opened one. */
  toggle(index, open) {
    const box = this.boxes[index];
    if (!this.closes || box.classList.contains("closed") !== open) return;
    const held = box.contains(document.activeElement);
    for (const cell of findAll(".cell", box)) {
      this.cells.delete(Number(cell.dataset.rank));
      this.lit.delete(Number(cell.dataset.rank));
    }
    for (const part of findAll(".tile, .nodes", box)) {
      this.litTiles.delete(part);
      part.remove();
    }
    box.classList.toggle("closed", !open);
    if (open) this.fillOpen(box);
    else this.fillClosed(box);
    if (open) for (const rank of box.ranks) this.paintCell(this.cells.get(rank), rank);
    const first = box.querySelector(".cell, .tile");
    if (held) this.focusOn(first);
    else if (!this.cursor || !this.cursor.isConnected) this.takesFocus(first);
  }

  makeCell(rank) {
    const cell = make("div", { class: "cell", role: "option", tabindex: -1, "aria-selected": "false", "data-rank": rank });
    cell.append(make("b", {}, String(rank)), make("i"));
    this.cells.set(rank, cell);
    return cell;
  }

  colourBy(name) {
    this.colouring = name;
    this.root.dataset.colouring = name;
    for (const [rank, cell] of this.cells) this.paintCell(cell, rank);
    for (const tile of findAll(".tile", this.viewport)) this.paintTile(tile, tile.parentElement);
  }

  paintCell(cell, rank) {
    const value = this.job.value(this.colouring, rank);
    const name = this.valueName(value);
    cell.classList.toggle("none", value < 0);
    const { fill, ink } = value < 0 ? { fill: "", ink: "" } : colour(value, this.job.scale(this.colouring));
    cell.style.background = fill;
    cell.style.color = ink;
    cell.lastChild.textContent = value < 0 ? "never" : this.shortName(value);
    cell.setAttribute("aria-label", `rank ${rank}, ${name}`);
  }

  /** A closed box shows its ranks as stripes, in rows of sixteen. */
  paintTile(tile, box) {
    const rows = [];
    for (let start = 0; start < box.ranks.length; start += 16) rows.push(box.ranks.slice(start, start + 16));
    const images = rows.map((row) => {
      const stops = row.map((rank, i) => {
        const value = this.job.value(this.colouring, rank);
        const fill = value < 0 ? "var(--never)" : colour(value, this.job.scale(this.colouring)).fill;
        return `${fill} ${(100 * i) / row.length}% ${(100 * (i + 1)) / row.length}%`;
      });
      return `linear-gradient(90deg,${stops.join(",")})`;
    });
    const height = 100 / rows.length;
    tile.style.backgroundImage = images.join(",");
    tile.style.backgroundSize = `100% ${height}%`;
    tile.style.backgroundPosition = images
      .map((_, i) => `0 ${rows.length === 1 ? 0 : (100 * i) / (rows.length - 1)}%`)
      .join(",");
  }

  shortName(value) {
    if (this.colouring === "part") return this.job.partOf(value).map(([, at]) => at).join(".");
    return `${this.colouring.startsWith("call:") ? "piece" : SHORT[this.colouring]} ${value}`;
  }

  /** Mark the ranks that `differs` says yes to. */
  markChanged(differs) {
    let any = false;
    for (const [rank, cell] of this.cells) any = cell.toggleAttribute("data-changed", differs(rank)) || any;
    this.root.classList.toggle("same", !any);
  }

  valueName(value) {
    if (this.colouring === "part") return partText(this.job, value);
    if (this.colouring.startsWith("call:")) return value < 0 ? "never called" : `piece ${value}`;
    return `${NAMES[this.colouring]} ${value}`;
  }

  /** Light these ranks and no others: a map from rank to the kinds of groups it is lit for; null: none. */
  light(kindsOf) {
    for (const cell of this.lit.values()) {
      delete cell.dataset.lit;
      delete cell.dataset.here;
    }
    for (const tile of this.litTiles) {
      delete tile.dataset.lit;
      delete tile.dataset.count;
    }
    this.lit.clear();
    this.litTiles.clear();
    this.root.classList.toggle("has-lit", kindsOf !== null);
    if (kindsOf === null) return;
    const inTiles = new Map();
    for (const [rank, kinds] of kindsOf) {
      const cell = this.cells.get(rank);
      if (cell) {
        cell.dataset.lit = kinds.join(" ");
        this.lit.set(rank, cell);
      } else {
        const index = this.job.blockOf(rank);
        const known = inTiles.get(index) || { count: 0, kinds: new Set() };
        known.count += 1;
        kinds.forEach((kind) => known.kinds.add(kind));
        inTiles.set(index, known);
      }
    }
    for (const [index, { count, kinds }] of inTiles) {
      const tile = find(".tile", this.boxes[index]);
      tile.dataset.lit = [...kinds].join(" ");
      tile.dataset.count = count;
      this.litTiles.add(tile);
    }
  }

  mark(rank) {
    const cell = this.cells.get(rank);
    if (cell) cell.dataset.here = "";
  }

  /** Show which rank is kept, or none. */
  select(rank) {
    for (const cell of findAll('[aria-selected="true"]', this.viewport)) cell.setAttribute("aria-selected", "false");
    const cell = this.cells.get(rank);
    if (cell) cell.setAttribute("aria-selected", "true");
  }

  takesFocus(item) {
    if (this.cursor) this.cursor.tabIndex = -1;
    this.cursor = item;
    if (item) item.tabIndex = 0;
  }

  focusOn(item) {
    if (!item) return;
    this.takesFocus(item);
    item.focus({ preventScroll: true });
    item.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** The cell or tile that an arrow key leads to. */
  neighbour(item, key) {
    const items = findAll(".cell, .tile", this.viewport);
    const at = items.indexOf(item);
    if (key === "ArrowRight") return items[at + 1];
    if (key === "ArrowLeft") return items[at - 1];
    if (key === "Home") return items[0];
    if (key === "End") return items[items.length - 1];
    return nearestInRow(items, at, key === "ArrowDown" ? 1 : -1);
  }

  /** Cells of one of the sizes; boxes then share the width evenly. */
  zoom(level) {
    this.root.dataset.zoom = level;
    const { viewport } = this;
    viewport.classList.add("natural");
    const widths = this.boxes.slice(0, 64).map((box) => (box.classList.contains("closed") || !this.closes ? box.offsetWidth : 0));
    const node = find(".node:not(.bare)", viewport);
    const nodeWidth = node ? node.offsetWidth : 0;
    viewport.classList.remove("natural");
    const style = getComputedStyle(viewport);
    const room = viewport.clientWidth - 2 * parseFloat(style.paddingLeft);
    const gap = parseFloat(style.columnGap);
    const closed = this.boxes.filter((box) => !this.closes || box.classList.contains("closed")).length;
    const widest = Math.max(...widths);
    this.overflows = widest > room + 1;
    viewport.style.setProperty("--box-columns", evenColumns(closed, room, widest, gap));
    if (!node) return;
    const nodes = node.parentElement;
    const nodeGap = parseFloat(getComputedStyle(nodes).columnGap);
    viewport.style.setProperty("--node-columns", evenColumns(nodes.childElementCount, nodes.clientWidth, nodeWidth, nodeGap));
  }

  fits(level) {
    this.zoom(level);
    const view = this.viewport;
    return !this.overflows && view.scrollHeight <= view.clientHeight + 1 && view.scrollWidth <= view.clientWidth + 1;
  }
}
