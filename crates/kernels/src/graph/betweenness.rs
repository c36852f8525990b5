//! Betweenness centrality: on how many of the shortest paths between two others a node lies (Brandes, 2001).
//!
//! ```text
//! from a source s, outwards:  paths(v) = sum of paths(u) over the nodes u before v
//!                 backwards:  share(u) = sum of paths(u) / paths(v) · (1 + share(v)) over the nodes v behind u
//! a node's betweenness is the sum of its shares over all sources but itself
//! ```
//! 1. Exact: all nodes are sources. Sampled: some are, and the sums are scaled by nodes ÷ samples.
//! 2. A state belongs to one thread. States of disjoint sources merge to the state of all of them; sums of floats differ in their last
//!    bits by how the sources were parted.
//! 3. A source takes time in proportion to the edges that it reaches. It asks every [`EDGES_UNTIL_ASKED`] edges whether to go on.

use super::csr::{CsrGraph, Direction};
use crate::random::SplitMix64;
use std::borrow::Borrow;

/// Edges after which a source asks whether it is cancelled: some ten microseconds.
const EDGES_UNTIL_ASKED: usize = 16 << 10;
const UNREACHED: u32 = u32::MAX;

/// Nobody wants the result any more. The state's sums hold part of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cancelled;

/// The divisor of the sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Normalization {
    /// The divisor is 1: a centrality is a number of paths, and paths of undirected graphs count once.
    None,
    /// The number of pairs of other nodes: a centrality is between 0 and 1.
    Pairs,
}

/// The betweenness sums of a graph, which `G` borrows or shares.
pub struct Betweenness<G> {
    graph: G,
    sums: Vec<f64>,
    /// The number of sources that were taken.
    sources: u64,
    // The state of the current source.
    distances: Vec<u32>,
    paths: Vec<f64>,
    shares: Vec<f64>,
    /// The nodes that were reached, the nearest first.
    reached: Vec<u32>,
    asking: CancelAsking,
}

/// Counts the edges until a source asks again whether to go on.
struct CancelAsking {
    edges_left: usize,
}

impl CancelAsking {
    fn ask(&mut self, edges: usize, is_cancelled: &mut dyn FnMut() -> bool) -> Result<(), Cancelled> {
        if let Some(left) = self.edges_left.checked_sub(edges + 1) {
            self.edges_left = left;
            return Ok(());
        }
        self.edges_left = EDGES_UNTIL_ASKED;
        if is_cancelled() { Err(Cancelled) } else { Ok(()) }
    }
}

impl Betweenness<CsrGraph> {
    /// Bytes of a state for a graph of `nodes` nodes.
    pub fn bytes(nodes: usize) -> u64 {
        nodes as u64 * (3 * 8 + 2 * 4)
    }
}

impl<G: Borrow<CsrGraph>> Betweenness<G> {
    pub fn new(graph: G) -> Betweenness<G> {
        let nodes = graph.borrow().nodes();
        Betweenness {
            graph,
            sums: vec![0.0; nodes],
            sources: 0,
            distances: vec![UNREACHED; nodes],
            paths: vec![0.0; nodes],
            shares: vec![0.0; nodes],
            reached: Vec::with_capacity(nodes),
            asking: CancelAsking { edges_left: EDGES_UNTIL_ASKED },
        }
    }

    /// Adds the shares of the paths from a node.
    ///
    /// # Panics
    /// When the graph has no such node.
    pub fn add_source(&mut self, source: u32, is_cancelled: &mut dyn FnMut() -> bool) -> Result<(), Cancelled> {
        self.spread(source, is_cancelled)?;
        self.gather(source, is_cancelled)?;
        for node in self.reached.drain(..) {
            let node = node as usize;
            (self.distances[node], self.paths[node], self.shares[node]) = (UNREACHED, 0.0, 0.0);
        }
        self.sources += 1;
        Ok(())
    }

    fn spread(&mut self, source: u32, is_cancelled: &mut dyn FnMut() -> bool) -> Result<(), Cancelled> {
        self.distances[source as usize] = 0;
        self.paths[source as usize] = 1.0;
        self.reached.push(source);
        let mut next = 0;
        while let Some(node) = self.reached.get(next).copied() {
            next += 1;
            let neighbours = self.graph.borrow().neighbours(node);
            self.asking.ask(neighbours.len(), is_cancelled)?;
            let (behind, paths) = (self.distances[node as usize] + 1, self.paths[node as usize]);
            for neighbour in neighbours {
                let distance = &mut self.distances[*neighbour as usize];
                if *distance == UNREACHED {
                    *distance = behind;
                    self.reached.push(*neighbour);
                }
                if *distance == behind {
                    self.paths[*neighbour as usize] += paths;
                }
            }
        }
        Ok(())
    }

    fn gather(&mut self, source: u32, is_cancelled: &mut dyn FnMut() -> bool) -> Result<(), Cancelled> {
        for place in (0..self.reached.len()).rev() {
            let node = self.reached[place];
            let neighbours = self.graph.borrow().neighbours(node);
            self.asking.ask(neighbours.len(), is_cancelled)?;
            let behind = self.distances[node as usize] + 1;
            let mut share = 0.0;
            for neighbour in neighbours {
                let neighbour = *neighbour as usize;
                if self.distances[neighbour] == behind {
                    share += (1.0 + self.shares[neighbour]) / self.paths[neighbour];
                }
            }
            share *= self.paths[node as usize];
            self.shares[node as usize] = share;
            if node != source {
                self.sums[node as usize] += share;
            }
        }
        Ok(())
    }

    pub fn sources(&self) -> u64 {
        self.sources
    }

    pub fn graph(&self) -> &CsrGraph {
        self.graph.borrow()
    }

    /// The sums by node, for the side that merges them.
    pub fn sums(&self) -> &[f64] {
        &self.sums
    }

    /// Adds the sums of another state of the same graph, from `sources` other sources.
    ///
    /// # Panics
    /// When `sums` has another number of nodes.
    pub fn merge(&mut self, sums: &[f64], sources: u64) {
        assert_eq!(sums.len(), self.sums.len(), "sums of another graph");
        self.sums.iter_mut().zip(sums).for_each(|(sum, other)| *sum += other);
        self.sources += sources;
    }

    /// The centrality of each node. It is scaled if not all nodes were sources.
    pub fn centralities(&self, normalization: Normalization) -> Vec<f64> {
        let graph = self.graph.borrow();
        let scale = scale(graph.nodes() as u64, self.sources, graph.direction(), normalization);
        self.sums.iter().map(|sum| sum * scale).collect()
    }
}

/// The factor for the sums of a graph of `nodes` nodes after `sources` sources.
pub fn scale(nodes: u64, sources: u64, direction: Direction, normalization: Normalization) -> f64 {
    let nodes = nodes as f64;
    let sampled = if sources == 0 { 0.0 } else { nodes / sources as f64 };
    let scale = match (normalization, direction) {
        // Graphs of two nodes have no third one between them.
        (Normalization::Pairs, _) if nodes <= 2.0 => 1.0,
        // Both directions of each pair are in the sums.
        (Normalization::Pairs, _) => 1.0 / ((nodes - 1.0) * (nodes - 2.0)),
        (Normalization::None, Direction::Undirected) => 0.5,
        (Normalization::None, Direction::Directed) => 1.0,
    };
    sampled * scale
}

/// Distinct nodes, ascending, drawn by a seed: `samples` of them, or all, if there are no more.
pub fn sampled_sources(nodes: usize, samples: usize, seed: u64) -> Vec<u32> {
    let mut random = SplitMix64::new(seed);
    let mut all: Vec<u32> = (0..nodes as u32).collect();
    let samples = samples.min(nodes);
    for place in 0..samples {
        all.swap(place, place + random.below((nodes - place) as u64) as usize);
    }
    all.truncate(samples);
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Betweenness by its definition: counts shortest paths between all pairs.
    fn by_definition(graph: &CsrGraph) -> Vec<f64> {
        let nodes = graph.nodes();
        let from = |source: usize| {
            let (mut distances, mut paths) = (vec![usize::MAX; nodes], vec![0.0; nodes]);
            (distances[source], paths[source]) = (0, 1.0);
            let mut level = vec![source];
            while !level.is_empty() {
                let mut next = Vec::new();
                for node in level {
                    for neighbour in graph.neighbours(node as u32).iter().map(|neighbour| *neighbour as usize) {
                        if distances[neighbour] == usize::MAX {
                            distances[neighbour] = distances[node] + 1;
                            next.push(neighbour);
                        }
                        if distances[neighbour] == distances[node] + 1 {
                            paths[neighbour] += paths[node];
                        }
                    }
                }
                level = next;
            }
            (distances, paths)
        };
        let all: Vec<_> = (0..nodes).map(from).collect();
        let mut sums = vec![0.0; nodes];
        for s in 0..nodes {
            for t in (0..nodes).filter(|t| *t != s && all[s].0[*t] != usize::MAX) {
                for v in (0..nodes).filter(|v| *v != s && *v != t) {
                    let is_between = all[s].0[v] != usize::MAX
                        && all[v].0[t] != usize::MAX
                        && all[s].0[v] + all[v].0[t] == all[s].0[t];
                    if is_between {
                        sums[v] += all[s].1[v] * all[v].1[t] / all[s].1[t];
                    }
                }
            }
        }
        sums
    }

    fn random_graph(nodes: u64, edges: usize, direction: Direction, seed: u64) -> CsrGraph {
        let ends = sampled_sources(nodes as usize * edges, 2 * edges, seed);
        let edges: Vec<_> =
            ends.chunks(2).map(|pair| (u64::from(pair[0]) % nodes, u64::from(pair[1]) * 7 % nodes)).collect();
        CsrGraph::build(&edges, direction, 1 << 30).unwrap()
    }

    fn exact(graph: &CsrGraph) -> Betweenness<&CsrGraph> {
        let mut state = Betweenness::new(graph);
        (0..graph.nodes() as u32).for_each(|source| state.add_source(source, &mut || false).unwrap());
        state
    }

    fn is_near(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-9 * b.abs().max(1.0))
    }

    #[test]
    fn it_is_what_the_definition_says() {
        for seed in 0..20 {
            for direction in [Direction::Directed, Direction::Undirected] {
                let graph = random_graph(25, 40, direction, seed);
                assert!(is_near(exact(&graph).sums(), &by_definition(&graph)), "seed {seed} {direction:?}");
            }
        }
    }

    #[test]
    fn parts_by_source_merge_to_the_whole() {
        let graph = random_graph(200, 600, Direction::Directed, 3);
        let whole = exact(&graph);
        let mut merged = Betweenness::new(&graph);
        for part in 0..3 {
            let mut state = Betweenness::new(&graph);
            (part..graph.nodes() as u32).step_by(3).for_each(|source| state.add_source(source, &mut || false).unwrap());
            merged.merge(state.sums(), state.sources());
        }
        assert_eq!(merged.sources(), whole.sources());
        assert!(is_near(&merged.centralities(Normalization::Pairs), &whole.centralities(Normalization::Pairs)));
    }

    #[test]
    fn a_sample_of_all_is_exact_and_samples_center_on_it() {
        let graph = random_graph(300, 1200, Direction::Undirected, 9);
        let whole = exact(&graph).centralities(Normalization::None);
        let sampled = |samples: usize, seed: u64| {
            let mut state = Betweenness::new(&graph);
            let sources = sampled_sources(graph.nodes(), samples, seed);
            sources.into_iter().for_each(|source| state.add_source(source, &mut || false).unwrap());
            state.centralities(Normalization::None)
        };
        assert!(is_near(&sampled(graph.nodes(), 1), &whole));
        let total = |centralities: &[f64]| centralities.iter().sum::<f64>();
        let mean = (0..40).map(|seed| total(&sampled(30, seed))).sum::<f64>() / 40.0;
        assert!((mean / total(&whole) - 1.0).abs() < 0.05, "{mean} of {}", total(&whole));
        assert_eq!(sampled(30, 7), sampled(30, 7));
    }

    #[test]
    fn sources_are_distinct_and_drawn_by_the_seed() {
        let drawn = sampled_sources(1000, 100, 5);
        assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]) && drawn.len() == 100);
        assert_ne!(drawn, sampled_sources(1000, 100, 6));
        assert_eq!(sampled_sources(3, 10, 1), [0, 1, 2]);
        assert!(sampled_sources(0, 10, 1).is_empty());
    }

    #[test]
    fn a_source_ends_when_it_is_cancelled() {
        let star: Vec<_> = (1..100_000).map(|leaf| (0, leaf)).collect();
        let graph = CsrGraph::build(&star, Direction::Undirected, 1 << 30).unwrap();
        let mut asked = 0;
        let mut state = Betweenness::new(&graph);
        let ended = state.add_source(1, &mut || {
            asked += 1;
            asked == 2
        });
        assert_eq!((ended, asked), (Err(Cancelled), 2));
    }
}
