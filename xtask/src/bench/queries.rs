//! nKV's GET of fields and its graphs: at the drive, on the host, and by RocksDB.

use tapetum_bench::filter::RETURNED_BYTES;
use tapetum_bench::graph::TOLD;
use tapetum_bench::turn::Report;

use super::arena::Load;
use super::contest::{CPU, Claim, Contest, Figure, RATE, Stage, Tier, Trial, group};
use super::peers::{ON_UNIT, ON_UNITS, ORDERED};
use super::shape::{Room, Shape};

/// The least rate of the store at the drive ÷ RocksDB's.
const FIELDS_LEAST: f64 = 1.4;
const RETURNED: Figure = ("bytes returned", |report: &Report| report.latencies.counted(RETURNED_BYTES));

/// Two fields of a large value (nKV's figure 7), extracted by the host from RocksDB's Get; by the host from the store's get; by the drive
/// on the asking thread; by a unit of the drive. Caches are tiny.
pub const FIELDS_GET: Contest = Contest {
    name: "fields-get",
    about: "two fields of one value",
    items: 60_000,
    value_bytes: 16 << 10,
    rounds: 7,
    room: Room::Nodes,
    tier: Tier::None,
    contenders: &["tapetum", ON_UNIT, ORDERED, "rocksdb"],
    by_name: &[],
    overwrites: 0,
    stages: fields_get,
    pictured: None,
};

fn fields_get(_: &Shape) -> Vec<Stage> {
    let trial = |name: &str, ours: &[(u64, u64)], theirs: &[(u64, u64)]| {
        let groups = vec![
            group("tapetum", "fields", ours),
            group(ON_UNIT, "fields", ours),
            group("tapetum", "fields-host", ours),
            group(ORDERED, "fields", ours),
            group("rocksdb", "fields", theirs),
        ];
        let at_drive = ["tapetum fields", ON_UNIT].map(|of| Claim::of(of, RATE).over("rocksdb").at_least(FIELDS_LEAST));
        let others = ["tapetum fields-host", ORDERED].map(|of| Claim::of(of, RATE).over("rocksdb"));
        let cpu =
            ["tapetum fields", ON_UNIT, "tapetum fields-host", ORDERED].map(|of| Claim::of(of, CPU).over("rocksdb"));
        let claims = at_drive.into_iter().chain(others).chain(cpu).collect();
        Trial { name: name.to_owned(), groups, claims, ..Trial::of(Load::of("c")) }
    };
    vec![Stage::of(vec![
        trial("many threads", &[(2, 1), (4, 1), (8, 1)], &[(2, 1), (4, 1), (8, 1), (16, 1)]),
        // The time of a single answer.
        trial("one thread", &[(1, 1)], &[(1, 1)]),
    ])]
}

/// Betweenness of graphs whose edges are items (nKV's figure 6): the drive scans and computes, with none, one and two units; or the host
/// takes the store's items; or RocksDB's iterator feeds the same code.
pub const GRAPH: Contest = Contest {
    name: "graph",
    about: "betweenness of the first edges",
    items: 2_000_000,
    // An edge and its attributes.
    value_bytes: 32,
    rounds: 3,
    contenders: &["tapetum", ON_UNIT, ON_UNITS, ORDERED, "rocksdb"],
    stages: graph,
    ..FIELDS_GET
};

fn graph(shape: &Shape) -> Vec<Stage> {
    let sizes =
        [(2500, "edges-2500"), (25_000, "edges-25000"), (250_000, "edges-250000"), (2_000_000, "edges-2000000")];
    let trials = sizes.into_iter().filter(|(edges, _)| *edges <= shape.items).map(|(edges, mix)| {
        let at_drive = ["tapetum graph", ON_UNIT, ON_UNITS, ORDERED];
        let rates = at_drive.into_iter().chain(["tapetum graph-host"]);
        let claims = rates.map(|of| Claim::of(of, RATE).over("rocksdb"));
        let claims = claims.chain(at_drive.map(|of| Claim::of(of, RETURNED))).collect();
        let ways = ["tapetum", ON_UNIT, ON_UNITS, ORDERED, "rocksdb"].map(|name| (name, "graph"));
        let ways = ways.into_iter().chain([("tapetum", "graph-host")]);
        let groups = ways.map(|(contender, api)| group(contender, api, &[(1, 1)])).collect();
        Trial { name: format!("{edges} edges"), groups, claims, agreed: &TOLD, ..Trial::once(mix) }
    });
    vec![Stage::of(trials.collect())]
}
