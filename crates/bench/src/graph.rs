//! A graph whose edges are items: item i is an edge from i % nodes. Most edges lead to a few nodes, like citations. Wherever the items come
//! from, the same query makes edges of them, and the same code computes their betweenness.

use tapetum_kernels::graph::{
    Direction, GraphPlan, GraphResult, GraphStep, GraphSummary, GraphWork, Normalization, Sampling,
};
use tapetum_kernels::scan::program::{Arithmetic, Comparison, Constant, Instruction, Program};
use tapetum_kernels::scan::query::{MisfitPolicy, QueryOutput};
use tapetum_kernels::scan::{Format, OwnedScalar, Query, QueryRun, RowBatch, ScalarType};

use crate::Failure;
use crate::latencies::Latencies;
use crate::turn::Turn;

pub const SEED: u64 = 1;
/// Number of nodes in the result.
pub const TOP: u32 = 10;
pub const MEMORY_BYTES: u64 = 1 << 30;
/// Figures that two contenders must agree on: the nodes in the result, and the size of the graph.
pub const TOLD: [&str; 3] = ["nodes", "edges", "top nodes"];

const EDGES_A_NODE: u64 = 10;
/// Up to this many edges all nodes are sources; beyond it, the number of sources.
const EXACT_EDGES_MAX: u64 = 50_000;
const SAMPLES: u32 = 20;

/// The edges of a turn's graph: those of the first items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EdgeSet {
    edges: u64,
}

impl EdgeSet {
    /// The edges of a turn with the mix `edges-N`.
    pub fn of(turn: &Turn) -> Result<EdgeSet, Failure> {
        let edges = turn.mix.strip_prefix("edges-").and_then(|edges| edges.parse().ok());
        let edges = edges.ok_or_else(|| format!("a graph's mix is edges-N, not {}", turn.mix))?;
        Ok(EdgeSet { edges })
    }

    /// Those of the first so many items.
    pub fn first(edges: u64) -> EdgeSet {
        EdgeSet { edges }
    }

    pub fn sampling(self) -> Sampling {
        if self.edges <= EXACT_EDGES_MAX { Sampling::Exact } else { Sampling::Samples(SAMPLES) }
    }

    /// A query for two columns. With n nodes, item i leads from `i % n` to `x² ÷ n`, where x is scattered over the nodes.
    pub fn query(self) -> Result<Query, Failure> {
        use Instruction::{Compare, Constant as Known, Field, Keep};
        let calculate = |how, one, other| Instruction::Arithmetic(how, one, other);
        let format = Format::parse("key: name bytes; value: number u64le, rest bytes")?;
        let nodes = (self.edges / EDGES_A_NODE).max(2);
        let constants = [self.edges, nodes, 7919, 104_729].map(|number| Constant::of(OwnedScalar::Unsigned(number)));
        let instructions = vec![
            Field(1),
            Known(0),
            Compare(Comparison::Less, 0, 1),
            Keep(2),
            Known(1),
            calculate(Arithmetic::Remainder, 0, 4),
            Known(2),
            calculate(Arithmetic::Multiply, 0, 6),
            calculate(Arithmetic::Divide, 0, 4),
            Known(3),
            calculate(Arithmetic::Multiply, 8, 9),
            calculate(Arithmetic::Add, 7, 10),
            calculate(Arithmetic::Remainder, 11, 4),
            calculate(Arithmetic::Multiply, 12, 12),
            calculate(Arithmetic::Divide, 13, 4),
        ];
        let types = [ScalarType::Bytes, ScalarType::Unsigned, ScalarType::Bytes];
        let program = Program::new(instructions, constants.into(), &types).map_err(|error| format!("{error:?}"))?;
        let output = QueryOutput::Rows { columns: vec![5, 14], order: None, limit: None };
        Query::new(format, program, output, MisfitPolicy::Fail).map_err(|error| format!("{error:?}").into())
    }

    /// Computes betweenness on this thread. `next` passes the next item to the function that it is called with, and returns false at the end.
    pub fn compute(
        self,
        mut next: impl FnMut(&mut dyn FnMut(&[u8], &[u8])) -> Result<bool, Failure>,
    ) -> Result<GraphResult, Failure> {
        let query = self.query()?;
        let mut work = GraphWork::new(self.plan());
        let (mut run, mut batch, mut frames) = (QueryRun::new(&query), RowBatch::new(), Vec::new());
        let mut more = true;
        while more {
            more = next(&mut |key, value| batch.push(key, value))?;
            if batch.is_full() || !more {
                run.run(&batch, &mut frames).map_err(|error| format!("{error:?}"))?;
                batch.clear();
                work.take(&frames).map_err(|error| format!("{error:?}"))?;
                frames.clear();
            }
        }
        run.finish(&mut frames);
        work.take(&frames).map_err(|error| format!("{error:?}"))?;
        let mut out = Vec::new();
        work.begin(&mut out).map_err(|error| format!("{error:?}"))?;
        while work.slice(&mut out, &mut || false).map_err(|error| format!("{error:?}"))? {}
        GraphResult::decode(&out).map_err(|error| format!("{error:?}").into())
    }

    fn plan(self) -> GraphPlan {
        GraphPlan {
            step: GraphStep::Compute,
            direction: Direction::Directed,
            normalization: Normalization::None,
            is_strict: true,
            part: 0,
            parts: 1,
            sampling: self.sampling(),
            seed: SEED,
            top: TOP,
            memory_mib: (MEMORY_BYTES >> 20) as u32,
        }
    }
}

/// Counts the graph's size, and a hash of its top nodes: [`TOLD`].
pub fn count(latencies: &mut Latencies, summary: GraphSummary, top: &[(u64, f64)]) {
    let hash = top.iter().fold(0, |hash, (node, _)| crate::random::mix(hash ^ node));
    for (name, more) in TOLD.into_iter().zip([summary.nodes, summary.edges, hash >> 32]) {
        latencies.count(name, more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_first_items_are_edges_and_a_few_nodes_have_most_of_them() {
        let turn = |mix: &str| Turn { mix: mix.into(), ..Turn::zipfian_gets(1, 1, Duration::ZERO, 1) };
        let edges = EdgeSet::of(&turn("edges-1000")).unwrap();
        let mut items = 0..2000_u64;
        let result = edges
            .compute(|push| {
                let Some(number) = items.next() else { return Ok(false) };
                push(b"key", &[&number.to_le_bytes()[..], b"rest"].concat());
                Ok(true)
            })
            .unwrap();
        assert_eq!((result.summary.nodes, result.top.len()), (100, 10));
        assert!((900..=1000).contains(&result.summary.edges), "{:?}", result.summary);
        assert!(EdgeSet::of(&turn("c")).is_err());
        assert_eq!(EdgeSet::of(&turn("edges-50001")).unwrap().sampling(), Sampling::Samples(SAMPLES));
    }
}
