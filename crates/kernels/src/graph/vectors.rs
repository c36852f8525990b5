//! Betweenness as networkx has it: `vectors.py` made `vectors.txt`.

use super::{Betweenness, CsrGraph, Direction, Normalization};

#[test]
fn centralities_are_those_of_networkx() {
    let text = include_str!("vectors.txt");
    let graphs: Vec<&str> = text.split("graph ").skip(1).collect();
    assert!(graphs.len() >= 9);
    graphs.into_iter().for_each(compare);
}

fn compare(text: &str) {
    let (name, lines) = text.split_once('\n').unwrap();
    let direction = if name.starts_with("directed") { Direction::Directed } else { Direction::Undirected };
    let (mut edges, mut expected) = (Vec::new(), Vec::new());
    for line in lines.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
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
    assert_eq!(graph.nodes(), expected.len(), "{name}");
    for (number, (node, of_plain, of_normalized)) in expected.into_iter().enumerate() {
        let is_near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * f64::max(b, 1.0);
        assert_eq!(graph.name(number as u32), node, "{name}");
        assert!(is_near(plain[number], of_plain), "{name}, node {node}: {} and {of_plain}", plain[number]);
        assert!(is_near(normalized[number], of_normalized), "{name}, node {node}");
    }
}
