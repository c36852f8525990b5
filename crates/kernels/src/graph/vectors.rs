//! Betweenness as networkx has it: `vectors.py` made `vectors.txt`.

use super::{Betweenness, CsrGraph, Direction, Normalization};
use std::collections::BTreeMap;

#[test]
fn centralities_are_those_of_networkx() {
    let text = include_str!("vectors.txt");
    let graphs: Vec<&str> = text.split("graph ").skip(1).collect();
    assert!(graphs.len() >= 10);
    graphs.into_iter().for_each(compare);
}

/// As `vectors.py` has them.
fn edges_of_rule(count: u64) -> Vec<(u64, u64)> {
    let edge = |number: u64| (number / 3 + 1, ((number * 2_654_435_761) >> 7) % (number / 3 + 1));
    let mut edges: Vec<_> = (0..count).map(edge).collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

fn compare(text: &str) {
    let (name, lines) = text.split_once('\n').unwrap();
    let direction = if name.starts_with("directed") { Direction::Directed } else { Direction::Undirected };
    let (mut edges, mut expected, mut nodes) = (Vec::new(), Vec::new(), None);
    for line in lines.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["rule", count, edges_found, nodes_found] => {
                edges = edges_of_rule(count.parse().unwrap());
                assert_eq!(edges.len().to_string(), edges_found, "{name}");
                nodes = Some(nodes_found.parse().unwrap());
            }
            ["edge", a, b] => edges.push((a.parse().unwrap(), b.parse().unwrap())),
            ["node", node, plain, normalized] => {
                expected.push((node.parse::<u64>().unwrap(), plain.parse().unwrap(), normalized.parse().unwrap()));
            }
            _ => panic!("{line}"),
        }
    }
    let graph = CsrGraph::build(&edges, direction, 1 << 30).unwrap();
    let mut state = Betweenness::new(&graph);
    (0..graph.nodes() as u32).for_each(|source| state.add_source(source, &mut || false).unwrap());
    let plain = state.centralities(Normalization::None);
    let normalized = state.centralities(Normalization::Pairs);
    assert_eq!(graph.nodes(), nodes.unwrap_or(expected.len()), "{name}");
    let numbers: BTreeMap<u64, usize> = (0..graph.nodes()).map(|number| (graph.name(number as u32), number)).collect();
    for (node, of_plain, of_normalized) in expected {
        let number = numbers[&node];
        let is_near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * f64::max(b, 1.0);
        assert!(is_near(plain[number], of_plain), "{name}, node {node}: {} and {of_plain}", plain[number]);
        assert!(is_near(normalized[number], of_normalized), "{name}, node {node}");
    }
}
