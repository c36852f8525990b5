//! nKV's walk through a database of papers, from outside: venue and year → the most prominent papers → one of them → others of the same
//! venue, author or year; at the drive and on the host. And a real graph: the packages of a machine.

use std::fs;

use crate::outside::{Scratch, tapetum};

fn new_scratch(name: &str) -> Scratch {
    Scratch::new(&format!("walk-{name}"), |command, _, data| {
        command.args(["--memory", "48MiB", "--data"]).arg(data);
    })
}

#[track_caller]
fn generates(store: &Scratch, words: &[&str]) {
    let into = store.join("data");
    let more = ["--capacity", "128MiB", "--memory", "48MiB", "--into"];
    let output = tapetum(&["generate"]).args(words).args(more).arg(into).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The same query at the drive and on the host, without the first line of the output; and what each reported.
#[track_caller]
fn asks_both(store: &Scratch, words: &[&str]) -> (Vec<String>, [String; 2]) {
    let ask = |side| store.asks(&[words, &["--format", "csv", "--explain", "--run", side]].concat());
    let ((at_drive, of_drive), (at_host, of_host)) = (ask("drive"), ask("host"));
    let sorted = |rows: &str| {
        let mut rows: Vec<String> = rows.lines().skip(1).map(str::to_owned).collect();
        rows.sort();
        rows
    };
    assert_eq!(sorted(&at_drive), sorted(&at_host), "{words:?}: {of_drive}{of_host}");
    (at_drive.lines().skip(1).map(str::to_owned).collect(), [of_drive, of_host])
}
/// The bytes that went to the host, according to `--explain`.
#[track_caller]
fn to_host(told: &str) -> u64 {
    let (before, _) = told.rsplit_once(" to the host").expect(told);
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn an_analyst_walks_from_a_venue_to_its_papers() {
    let store = new_scratch("papers");
    generates(&store, &["papers", "--scale", "0.001", "--seed", "3"]);
    let (listed, _) = store.asks(&["keyspace", "list"]);
    let names: Vec<&str> = listed.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(names, ["authors", "authorships", "default", "papers", "references", "venues"]);
    assert!(listed.contains("papers\thashed\t3800\tkey: id u32be; value: year u16le, venue string8, title string"));

    // The most prominent of the papers that a venue's papers cite.
    let edges = "from references where venue = 'VLDB' and year between 1990 and 2020";
    let (top, [at_drive, at_host]) = asks_both(&store, &["graph", "bc", "--edges", edges, "--top", "3"]);
    assert!(top.len() == 3 && at_drive.contains("exact, from all nodes"), "{top:?} {at_drive}");
    assert!(at_drive.contains("1 commands and 1 wake-ups") && at_host.contains("all records crossed"), "{at_drive}");
    assert!(to_host(&at_drive) < 4096 && to_host(&at_host) > 100 * to_host(&at_drive), "{at_drive}{at_host}");
    let (paper, centrality) = top[0].split_once(',').unwrap();
    assert!(centrality.parse::<f64>().unwrap() > 0.0, "{top:?}");

    // One of them.
    let (found, [at_drive, _]) = asks_both(&store, &["get", paper, "--keyspace", "papers", "--select", "year, venue"]);
    assert!(found.len() == 1 && at_drive.contains("only the fields crossed"), "{found:?} {at_drive}");
    let (year, venue) = found[0].split_once(',').unwrap();
    assert!(store.fails(&["get", "1000000", "--keyspace", "papers", "--select", "year"]).contains("no key"));
    assert!(store.fails(&["get", "x", "--keyspace", "papers", "--select", "year"]).contains("not a whole number"));

    // Others of its venue and year, and of its first author.
    let condition = format!("venue = '{venue}' and year = {year}");
    let (others, _) = asks_both(&store, &["scan", "papers", "--where", &condition, "--select", "id"]);
    assert!(others.contains(&paper.to_owned()), "{others:?}");
    let of_paper = format!("paper = {paper} and place = 0");
    let (author, _) = asks_both(&store, &["scan", "authorships", "--where", &of_paper, "--select", "author"]);
    let of_author = format!("author = {}", author[0]);
    let (papers, [at_drive, at_host]) =
        asks_both(&store, &["scan", "authorships", "--where", &of_author, "--select", "paper"]);
    assert!(papers.contains(&paper.to_owned()), "{papers:?}");
    assert!(to_host(&at_drive) < to_host(&at_host), "{at_drive}{at_host}");
}

#[test]
fn what_a_graph_cannot_be_is_told() {
    let store = new_scratch("wrong");
    generates(&store, &["papers", "--scale", "0.0005"]);
    let bc = |edges: &str, more: &[&str]| store.fails(&[&["graph", "bc", "--edges", edges], more].concat());
    assert!(bc("year, venue from papers", &[]).contains("two columns of integers"));
    assert!(bc("from papers", &[]).contains("the key of papers has one field"));
    assert!(bc("from none", &[]).contains("no keyspace"));
    assert!(bc("from references where yaer = 1", &[]).contains("the format has no such field; year is one"));
    assert!(bc("citing, cited, year from references", &[]).contains("two columns of integers"));
    let (_, told) = store.asks(&["graph", "bc", "--edges", "from references", "--samples", "50", "--units", "2"]);
    assert!(told.contains("estimated, from 50 nodes: --exact takes all"), "{told}");
}

#[test]
fn packages_of_a_machine_are_a_graph() {
    let store = new_scratch("packages");
    let status = store.join("status");
    let mut text = String::new();
    for (name, needs) in [("app", "lib, tool"), ("tool", "lib"), ("lib", "base (>= 1)"), ("base", ""), ("web", "app")] {
        text += &format!("Package: {name}\nStatus: install ok installed\nVersion: 1\nDepends: {needs}\n\n");
    }
    fs::write(&status, text).unwrap();
    generates(&store, &["packages", "--from", status.to_str().unwrap()]);
    let (top, told) = store.asks(&["graph", "bc", "--edges", "from dependencies", "--top", "2", "--format", "csv"]);
    // In alphabetical order: app 0, base 1, lib 2, tool 3, web 4.
    assert_eq!(top, "node,betweenness\n0,3\n2,3\n", "{told}");
    let named = ["get", "2", "--keyspace", "packages", "--select", "name", "--format", "csv"];
    assert_eq!(store.asks(&named).0, "name\nlib\n");
}
