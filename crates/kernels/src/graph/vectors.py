"""Makes vectors.txt: betweenness as networkx has it. Run: python3 crates/kernels/src/graph/vectors.py (networkx 3.6.1)."""

import pathlib

import networkx


def graphs():
    yield "karate club", networkx.Graph(networkx.karate_club_graph().edges())
    yield "path", networkx.path_graph(5)
    yield "two nodes", networkx.path_graph(2)
    yield "grid", networkx.convert_node_labels_to_integers(networkx.grid_2d_graph(5, 6))
    yield "two parts, loops", networkx.Graph([(1, 2), (2, 3), (3, 3), (7, 8), (8, 9), (9, 7), (2, 2)])
    yield "random", networkx.gnp_random_graph(50, 0.1, seed=1)
    yield "scale-free", networkx.barabasi_albert_graph(120, 2, seed=2)
    yield "directed", networkx.gnp_random_graph(60, 0.06, seed=3, directed=True)
    yield "citations", networkx.DiGraph(networkx.gn_graph(100, seed=4))


def edges_of_rule(count):
    """Citations by a rule, which the test has too: each of some papers cites three earlier ones."""
    for number in range(count):
        citing = number // 3 + 1
        yield citing, (number * 2654435761 >> 7) % citing


lines = []
for name, graph in graphs():
    directed = graph.is_directed()
    lines.append(f"graph {'directed' if directed else 'undirected'} {name}")
    lines += [f"edge {a} {b}" for a, b in graph.edges()]
    plain = networkx.betweenness_centrality(graph, normalized=False)
    normalized = networkx.betweenness_centrality(graph, normalized=True)
    lines += [f"node {node} {plain[node]!r} {normalized[node]!r}" for node in sorted(graph) if graph.degree(node) > 0]

# Of the nodes of the largest graph every twentieth is looked at.
COUNT = 10_000
large = networkx.DiGraph(edges_of_rule(COUNT))
plain = networkx.betweenness_centrality(large, normalized=False)
normalized = networkx.betweenness_centrality(large, normalized=True)
lines += ["graph directed by a rule", f"rule {COUNT} {large.number_of_edges()} {large.number_of_nodes()}"]
lines += [f"node {node} {plain[node]!r} {normalized[node]!r}" for node in sorted(large)[::20]]
pathlib.Path(__file__).with_name("vectors.txt").write_text("\n".join(lines) + "\n")
