//! Compressed sparse rows: the neighbours of all nodes in one array, those of a node one behind the other.
//!
//! 1. Nodes are numbered from 0 on in the order of their names, which are the numbers in the list of edges.
//! 2. Each edge is there once, however often the list has it. Edges from a node to itself are left out: no shortest path has one.
//! 3. An undirected edge stands with both of its nodes.

/// Whether an edge leads both ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    Directed,
    Undirected,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphError {
    /// The list has more edges than a graph can have.
    TooManyEdges,
    /// Building the graph takes more bytes than there are.
    Memory { needed: u64 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CsrGraph {
    names: Vec<u64>,
    /// The offset at which each node's neighbours begin, and the end of the last node's.
    offsets: Vec<u32>,
    neighbours: Vec<u32>,
    direction: Direction,
}

impl CsrGraph {
    /// The most bytes that a graph of `edges` edges takes while it is built, besides the list itself.
    pub fn bytes_max(edges: u64, direction: Direction) -> u64 {
        let ways = if direction == Direction::Undirected { 2 } else { 1 };
        // Each end has a name, and each way stands once in pairs and once among the neighbours, beside the offsets.
        edges.saturating_mul(2 * 8 + ways * (8 + 4) + 2 * 4).saturating_add(8)
    }

    /// Builds the graph of a list of edges, each from its first node to its second.
    pub fn build(edges: &[(u64, u64)], direction: Direction, bytes_max: u64) -> Result<CsrGraph, GraphError> {
        let needed = CsrGraph::bytes_max(edges.len() as u64, direction);
        if needed > bytes_max {
            return Err(GraphError::Memory { needed });
        }
        // Both ways of all edges together stay below 2^32.
        if edges.len() > u32::MAX as usize / 2 {
            return Err(GraphError::TooManyEdges);
        }
        let mut names: Vec<u64> = edges.iter().flat_map(|(from, to)| [*from, *to]).collect();
        names.sort_unstable();
        names.dedup();
        let number = |name: u64| names.binary_search(&name).unwrap_or_default() as u32;
        let mut ways: Vec<(u32, u32)> = Vec::with_capacity(edges.len());
        for (from, to) in edges {
            let (from, to) = (number(*from), number(*to));
            if from == to {
                continue;
            }
            ways.push((from, to));
            if direction == Direction::Undirected {
                ways.push((to, from));
            }
        }
        ways.sort_unstable();
        ways.dedup();
        let mut offsets = Vec::with_capacity(names.len() + 1);
        let mut at = 0;
        for node in 0..names.len() as u32 {
            offsets.push(at as u32);
            at += ways[at..].iter().take_while(|(from, _)| *from == node).count();
        }
        offsets.push(at as u32);
        let neighbours = ways.iter().map(|(_, to)| *to).collect();
        Ok(CsrGraph { names, offsets, neighbours, direction })
    }

    pub fn nodes(&self) -> usize {
        self.names.len()
    }

    /// Distinct edges, without those from a node to itself.
    pub fn edges(&self) -> usize {
        match self.direction {
            Direction::Directed => self.neighbours.len(),
            Direction::Undirected => self.neighbours.len() / 2,
        }
    }

    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The node's name in the list of edges.
    pub fn name(&self, node: u32) -> u64 {
        self.names[node as usize]
    }

    #[inline]
    pub fn neighbours(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.neighbours[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [(u64, u64); 6] = [(30, 10), (10, 20), (30, 10), (20, 20), (10, 30), (u64::MAX, 10)];

    #[test]
    fn edges_are_there_once_and_nodes_are_in_order() {
        let graph = CsrGraph::build(&EDGES, Direction::Directed, 1 << 20).unwrap();
        assert_eq!([0, 1, 2, 3].map(|node| graph.name(node)), [10, 20, 30, u64::MAX]);
        let neighbours = [0, 1, 2, 3].map(|node| graph.neighbours(node).to_vec());
        assert_eq!(neighbours, [vec![1, 2], vec![], vec![0], vec![0]]);
        assert_eq!((graph.nodes(), graph.edges()), (4, 4));
        let both = CsrGraph::build(&EDGES, Direction::Undirected, 1 << 20).unwrap();
        let neighbours = [0, 1, 2, 3].map(|node| both.neighbours(node).to_vec());
        assert_eq!(neighbours, [vec![1, 2, 3], vec![0], vec![0], vec![0]]);
        assert_eq!(both.edges(), 3);
    }

    #[test]
    fn a_graph_that_does_not_fit_is_refused_before_it_is_built() {
        let needed = CsrGraph::bytes_max(EDGES.len() as u64, Direction::Undirected);
        assert!(CsrGraph::build(&EDGES, Direction::Undirected, needed).is_ok());
        let refused = CsrGraph::build(&EDGES, Direction::Undirected, needed - 1);
        assert_eq!(refused, Err(GraphError::Memory { needed }));
        assert_eq!(CsrGraph::bytes_max(u64::MAX, Direction::Directed), u64::MAX);
    }

    #[test]
    fn no_edges_are_a_graph_without_nodes() {
        let graph = CsrGraph::build(&[], Direction::Directed, 1 << 20).unwrap();
        assert_eq!((graph.nodes(), graph.edges()), (0, 0));
    }
}
