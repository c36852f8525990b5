//! Betweenness of the edges that a scan gives: frames of rows in, frames of results out, a slice of the work at a time.
//!
//! ```text
//! compute:  rows of two integers ─► edges ─► graph ─► sources, those of this part ─┬─ one part: the nodes with the most
//!                                                                                 └─ several:  sums of all nodes
//! merge:    what the parts gave ─► sums ─► the nodes with the most
//! frames, as [`crate::scan::run`] has them, of these kinds besides:
//!  16  progress: a slice is done       bytes, which mean nothing, up to [`SLICE_BYTES`] with the head
//!  17  summary:  nodes u64 · edges u64 · sources u64 · rows with a NULL u64
//!  18  sums:     of each node, by its number: name u64, sum f64
//!  19  top:      name u64, centrality f64, the greatest first; of equal ones the least name
//! ```
//! 1. Whatever its input is, work ends in a result or a [`GraphFailure`], within the plan's memory. Edges beyond it are refused when they come.
//! 2. Parts of one plan over the same input have disjoint sources, and all of them together.
//! 3. Ends of scans are passed on, by the first part alone.

use super::{Betweenness, CsrGraph, GraphError, GraphPlan, GraphStep, Sampling, sampled_sources};
use crate::graph::betweenness::scale;
use crate::scan::ScalarType;
use crate::scan::rows::read_row;
use crate::scan::run::{FRAME_HEAD_BYTES, FrameKind};
use crate::scan::wire::{ScanReader, WireError};
use std::cmp::Ordering;

/// The most edges of a graph whose nodes are all sources under [`Sampling::Automatic`]: some minutes of one core.
pub const EXACT_EDGES_MAX: usize = 50_000;
/// The number of sources of a larger graph under [`Sampling::Automatic`].
pub const SAMPLES_AUTOMATIC: u32 = 1000;
/// The most slices of a part's work.
pub const SLICES: usize = 100;
/// Bytes of a frame that says that a slice is done.
pub const SLICE_BYTES: u64 = 16;

const PROGRESS: u8 = 16;
const SUMMARY: u8 = 17;
const SUMS: u8 = 18;
const TOP: u8 = 19;
const PAIR_BYTES: usize = 16;

/// The reason that there is no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphFailure {
    Malformed,
    /// The graph takes more memory than the plan has.
    TooLarge,
    /// An edge lies elsewhere.
    Elsewhere,
    Cancelled,
}

impl From<WireError> for GraphFailure {
    fn from(_: WireError) -> GraphFailure {
        GraphFailure::Malformed
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraphSummary {
    pub nodes: u64,
    pub edges: u64,
    pub sources: u64,
    /// Rows with a NULL, which are no edges.
    pub nulls: u64,
}

pub struct GraphWork {
    plan: GraphPlan,
    /// The beginning of a frame whose rest has not arrived.
    open: Vec<u8>,
    edges: Vec<(u64, u64)>,
    /// The sums of the merged parts, by the nodes' numbers.
    sums: Vec<(u64, f64)>,
    summary: GraphSummary,
    /// The end frames of the scans.
    ends: Vec<u8>,
    has_misfits: bool,
    compute: Option<GraphCompute>,
}

/// A part's sources, which are taken one after the other.
struct GraphCompute {
    state: Betweenness<CsrGraph>,
    sources: Vec<u32>,
    next: usize,
}

impl GraphWork {
    pub fn new(plan: GraphPlan) -> GraphWork {
        GraphWork {
            plan,
            open: Vec::new(),
            edges: Vec::new(),
            sums: Vec::new(),
            summary: GraphSummary::default(),
            ends: Vec::new(),
            has_misfits: false,
            compute: None,
        }
    }

    /// Takes input, cut anywhere.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), GraphFailure> {
        self.open.extend_from_slice(bytes);
        let open = std::mem::take(&mut self.open);
        let mut reader = ScanReader::new(&open);
        while let Some((kind, whole, body)) = next_frame(&mut reader)? {
            self.take_frame(kind, whole, body)?;
        }
        self.open = reader.rest().to_vec();
        let held = self.open.len() as u64 + (self.edges.len() + self.sums.len()) as u64 * PAIR_BYTES as u64;
        if held > self.plan.memory_bytes() { Err(GraphFailure::TooLarge) } else { Ok(()) }
    }

    fn take_frame(&mut self, kind: u8, whole: &[u8], body: &[u8]) -> Result<(), GraphFailure> {
        let mut reader = ScanReader::new(body);
        match (self.plan.step, kind) {
            (_, kind) if kind == FrameKind::End as u8 => {
                let [_, _, misfits] = [reader.u64()?, reader.u64()?, reader.u64()?];
                self.has_misfits |= misfits > 0;
                self.ends.extend_from_slice(whole);
            }
            (GraphStep::Compute, kind) if kind == FrameKind::Rows as u8 => {
                while !reader.is_empty() {
                    let (mut ends, mut there) = ([0; 2], 0);
                    read_row(&[ScalarType::Unsigned; 2], &mut reader, |value| {
                        if let Some(crate::scan::Scalar::Unsigned(name)) = value {
                            ends[there] = name;
                            there += 1;
                        }
                    })?;
                    match there {
                        2 => self.edges.push((ends[0], ends[1])),
                        _ => self.summary.nulls += 1,
                    }
                }
            }
            (GraphStep::Compute, kind) if kind == FrameKind::Deferred as u8 || kind == FrameKind::Missed as u8 => {
                return Err(GraphFailure::Elsewhere);
            }
            // The scan stopped at a limit of edges, or whoever gathers the edges has dealt with the rest.
            (GraphStep::Compute, kind) if kind == FrameKind::Stopped as u8 || kind == FrameKind::Settled as u8 => {}
            (GraphStep::Merge, PROGRESS) => {}
            (GraphStep::Merge, SUMMARY) => {
                let summary = GraphSummary::decode(&mut reader)?;
                self.summary = GraphSummary { sources: self.summary.sources + summary.sources, ..summary };
            }
            (GraphStep::Merge, SUMS) => self.merge_sums(&pairs(body)?)?,
            _ => return Err(GraphFailure::Malformed),
        }
        Ok(())
    }

    fn merge_sums(&mut self, part: &[(u64, f64)]) -> Result<(), GraphFailure> {
        if self.sums.is_empty() {
            self.sums = part.to_vec();
            return Ok(());
        }
        let is_same = self.sums.len() == part.len() && self.sums.iter().zip(part).all(|(one, other)| one.0 == other.0);
        if !is_same {
            return Err(GraphFailure::Malformed);
        }
        self.sums.iter_mut().zip(part).for_each(|(sum, (_, other))| sum.1 += other);
        Ok(())
    }

    /// Ends the input and builds the graph.
    pub fn begin(&mut self, out: &mut Vec<u8>) -> Result<(), GraphFailure> {
        if !self.open.is_empty() {
            return Err(GraphFailure::Malformed);
        }
        if self.plan.part == 0 {
            out.append(&mut self.ends);
        }
        if self.plan.step == GraphStep::Merge || self.plan.is_strict && self.has_misfits {
            return Ok(());
        }
        let edges = std::mem::take(&mut self.edges);
        // The bound is known before anything is built: there are at most twice as many nodes as edges.
        let held = edges.capacity() as u64 * PAIR_BYTES as u64;
        let room = self.plan.memory_bytes().saturating_sub(held);
        let graph = CsrGraph::build(&edges, self.plan.direction, room);
        let graph = graph.map_err(|_: GraphError| GraphFailure::TooLarge)?;
        let nodes = graph.nodes();
        if Betweenness::bytes(nodes) + CsrGraph::bytes_max(graph.edges() as u64, self.plan.direction)
            > self.plan.memory_bytes()
        {
            return Err(GraphFailure::TooLarge);
        }
        let samples = match self.plan.sampling {
            Sampling::Automatic if graph.edges() > EXACT_EDGES_MAX => SAMPLES_AUTOMATIC as usize,
            Sampling::Automatic | Sampling::Exact => nodes,
            Sampling::Samples(samples) => samples as usize,
        };
        let of_part = |(number, _): &(usize, u32)| number % usize::from(self.plan.parts) == usize::from(self.plan.part);
        let all = sampled_sources(nodes, samples, self.plan.seed).into_iter().enumerate();
        let sources = all.filter(of_part).map(|(_, source)| source).collect();
        (self.summary.nodes, self.summary.edges) = (nodes as u64, graph.edges() as u64);
        self.compute = Some(GraphCompute { state: Betweenness::new(graph), sources, next: 0 });
        Ok(())
    }

    /// Does a slice of the work. Returns whether there is more.
    pub fn slice(&mut self, out: &mut Vec<u8>, is_cancelled: &mut dyn FnMut() -> bool) -> Result<bool, GraphFailure> {
        let Some(GraphCompute { state, sources, next }) = &mut self.compute else {
            self.finish_merge(out);
            return Ok(false);
        };
        let end = sources.len().min(*next + sources.len().div_ceil(SLICES).max(1));
        for source in &sources[*next..end] {
            state.add_source(*source, is_cancelled).map_err(|super::Cancelled| GraphFailure::Cancelled)?;
        }
        *next = end;
        frame(PROGRESS, out, |out| out.extend_from_slice(&[0; SLICE_BYTES as usize - FRAME_HEAD_BYTES]));
        if end < sources.len() {
            return Ok(true);
        }
        self.summary.sources = state.sources();
        let graph = state.graph();
        let named = state.sums().iter().enumerate().map(|(node, sum)| (graph.name(node as u32), *sum)).collect();
        self.compute = None;
        if self.plan.parts == 1 {
            self.show(named, out)
        } else {
            self.show_sums(&named, out)
        }
        Ok(false)
    }

    fn finish_merge(&mut self, out: &mut Vec<u8>) {
        if self.plan.step == GraphStep::Merge && !(self.plan.is_strict && self.has_misfits) {
            let sums = std::mem::take(&mut self.sums);
            self.show(sums, out);
        }
    }

    fn show_sums(&self, named: &[(u64, f64)], out: &mut Vec<u8>) {
        frame(SUMMARY, out, |out| self.summary.encode(out));
        frame(SUMS, out, |out| named.iter().for_each(|(name, sum)| push_pair(*name, *sum, out)));
    }

    /// Writes the nodes with the greatest centralities.
    fn show(&self, mut named: Vec<(u64, f64)>, out: &mut Vec<u8>) {
        let GraphSummary { nodes, sources, .. } = self.summary;
        let scale = scale(nodes, sources, self.plan.direction, self.plan.normalization);
        let order =
            |a: &(u64, f64), b: &(u64, f64)| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0));
        let top = named.len().min(self.plan.top as usize);
        if top > 0 && top < named.len() {
            named.select_nth_unstable_by(top - 1, order);
        }
        named.truncate(top);
        named.sort_unstable_by(order);
        frame(SUMMARY, out, |out| self.summary.encode(out));
        frame(TOP, out, |out| named.iter().for_each(|(name, sum)| push_pair(*name, sum * scale, out)));
    }
}

impl GraphSummary {
    fn encode(&self, out: &mut Vec<u8>) {
        let GraphSummary { nodes, edges, sources, nulls } = *self;
        [nodes, edges, sources, nulls].into_iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    }

    fn decode(reader: &mut ScanReader<'_>) -> Result<GraphSummary, WireError> {
        Ok(GraphSummary { nodes: reader.u64()?, edges: reader.u64()?, sources: reader.u64()?, nulls: reader.u64()? })
    }
}

/// The result of the work, as a host reads it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GraphResult {
    pub summary: GraphSummary,
    /// Names and centralities, the greatest first.
    pub top: Vec<(u64, f64)>,
    /// The end frames of the scans, for [`crate::scan::QueryResult`].
    pub ends: Vec<u8>,
}

impl GraphResult {
    /// Reads whole frames.
    pub fn decode(frames: &[u8]) -> Result<GraphResult, WireError> {
        let (mut reader, mut result) = (ScanReader::new(frames), GraphResult::default());
        while let Some((kind, whole, body)) = next_frame(&mut reader)? {
            match kind {
                PROGRESS => {}
                SUMMARY => result.summary = GraphSummary::decode(&mut ScanReader::new(body))?,
                TOP => result.top = pairs(body)?,
                kind if kind == FrameKind::End as u8 => result.ends.extend_from_slice(whole),
                _ => return Err(WireError::Malformed),
            }
        }
        if reader.is_empty() { Ok(result) } else { Err(WireError::Short) }
    }
}

/// A frame's kind, the whole frame, and its body.
type FrameParts<'a> = (u8, &'a [u8], &'a [u8]);

/// The next frame, if it is there whole.
fn next_frame<'a>(reader: &mut ScanReader<'a>) -> Result<Option<FrameParts<'a>>, WireError> {
    let Some(head) = reader.rest().first_chunk::<FRAME_HEAD_BYTES>() else { return Ok(None) };
    let [kind, 0, 0, 0, length @ ..] = *head else { return Err(WireError::Malformed) };
    let bytes = FRAME_HEAD_BYTES + u32::from_le_bytes(length) as usize;
    if reader.rest().len() < bytes {
        return Ok(None);
    }
    let whole = reader.take(bytes)?;
    Ok(Some((kind, whole, &whole[FRAME_HEAD_BYTES..])))
}

fn frame(kind: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    body(out);
    let length = (out.len() - at - FRAME_HEAD_BYTES) as u32;
    out[at + 4..at + FRAME_HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
}

fn push_pair(name: u64, sum: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(&name.to_le_bytes());
    out.extend_from_slice(&sum.to_bits().to_le_bytes());
}

fn pairs(body: &[u8]) -> Result<Vec<(u64, f64)>, WireError> {
    let (pairs, rest) = body.as_chunks::<PAIR_BYTES>();
    let pair = |bytes: &[u8; PAIR_BYTES]| {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
        (word(0), f64::from_bits(word(8)))
    };
    if rest.is_empty() { Ok(pairs.iter().map(pair).collect()) } else { Err(WireError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::plan::tests::PLAN;
    use crate::scan::Scalar;
    use crate::scan::rows::write_row;

    fn rows(edges: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        for edges in edges.chunks(100) {
            frame(FrameKind::Rows as u8, &mut out, |out| {
                for (from, to) in edges {
                    write_row(2, [*from, *to].map(|end| Some(Scalar::Unsigned(end))).into_iter(), out);
                }
            });
        }
        out
    }

    fn end(misfits: u64) -> Vec<u8> {
        let mut out = Vec::new();
        frame(FrameKind::End as u8, &mut out, |out| {
            [7, 7, misfits].into_iter().for_each(|count: u64| out.extend_from_slice(&count.to_le_bytes()));
            out.extend_from_slice(&[0; 8]);
        });
        out
    }

    fn run(plan: GraphPlan, input: &[u8], part_bytes: usize) -> Result<Vec<u8>, GraphFailure> {
        let (mut work, mut out) = (GraphWork::new(plan), Vec::new());
        for part in input.chunks(part_bytes) {
            work.take(part)?;
        }
        work.begin(&mut out)?;
        while work.slice(&mut out, &mut || false)? {}
        Ok(out)
    }

    fn edges(count: usize) -> Vec<(u64, u64)> {
        let ends = sampled_sources(100 * count, 2 * count, 3);
        ends.chunks(2).map(|pair| (u64::from(pair[0]) % 60, u64::from(pair[1]) * 7 % 60)).collect()
    }

    #[test]
    fn parts_that_are_merged_are_the_whole() {
        let input = [rows(&edges(300)), end(0)].concat();
        for sampling in [Sampling::Exact, Sampling::Automatic, Sampling::Samples(20)] {
            let plan = GraphPlan { sampling, ..PLAN };
            let whole = GraphResult::decode(&run(plan, &input, 11).unwrap()).unwrap();
            assert_eq!((whole.top.len(), whole.ends.clone()), (5, end(0)));
            let of_part = |part| run(GraphPlan { part, parts: 3, ..plan }, &input, 1 << 20).unwrap();
            let parts: Vec<u8> = (0..3).flat_map(of_part).collect();
            let merged = run(GraphPlan { step: GraphStep::Merge, ..plan }, &parts, 77).unwrap();
            let merged = GraphResult::decode(&merged).unwrap();
            assert_eq!((merged.summary, &merged.ends), (whole.summary, &whole.ends));
            let is_near = |a: &(u64, f64), b: &(u64, f64)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-9 * b.1;
            assert!(merged.top.iter().zip(&whole.top).all(|(a, b)| is_near(a, b)), "{merged:?} {whole:?}");
        }
    }

    #[test]
    fn the_greatest_come_first_and_rows_with_a_null_are_counted() {
        // The graph is a path: 1 → 2 → 3 → 4.
        let mut input = rows(&[(1, 2), (2, 3), (3, 4)]);
        frame(FrameKind::Rows as u8, &mut input, |out| {
            write_row(2, [Some(Scalar::Unsigned(9)), None].into_iter(), out)
        });
        let result = GraphResult::decode(&run(PLAN, &input, 5).unwrap()).unwrap();
        assert_eq!(result.top, [(2, 2.0), (3, 2.0), (1, 0.0), (4, 0.0)]);
        assert_eq!(result.summary, GraphSummary { nodes: 4, edges: 3, sources: 4, nulls: 1 });
    }

    #[test]
    fn what_cannot_be_computed_is_refused() {
        let many = rows(&edges(70_000));
        assert_eq!(run(GraphPlan { memory_mib: 1, ..PLAN }, &many, 1 << 16), Err(GraphFailure::TooLarge));
        assert_eq!(run(GraphPlan { memory_mib: 0, ..PLAN }, &rows(&[(1, 2)]), 99), Err(GraphFailure::TooLarge));
        let mut deferred = Vec::new();
        crate::scan::run::write_deferred(b"k", 0, b"", &mut deferred);
        assert_eq!(run(PLAN, &deferred, 99), Err(GraphFailure::Elsewhere));
        assert_eq!(run(PLAN, &rows(&[(1, 2)])[..20], 99), Err(GraphFailure::Malformed));
        assert_eq!(run(PLAN, &[20, 0, 0, 0, 0, 0, 0, 0], 99), Err(GraphFailure::Malformed));
        let misfit = [rows(&[(1, 2)]), end(1)].concat();
        let strict = run(GraphPlan { is_strict: true, ..PLAN }, &misfit, 99).unwrap();
        assert_eq!(GraphResult::decode(&strict).unwrap(), GraphResult { ends: end(1), ..GraphResult::default() });
        let (mut work, mut out) = (GraphWork::new(PLAN), Vec::new());
        work.take(&rows(&edges(60_000))).unwrap();
        work.begin(&mut out).unwrap();
        // The first steps do not ask whether to go on.
        let slices = std::iter::repeat_with(|| work.slice(&mut out, &mut || true));
        assert_eq!({ slices }.find(|slice| *slice != Ok(true)), Some(Err(GraphFailure::Cancelled)));
    }
}
