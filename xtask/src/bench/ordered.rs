//! Ordered keyspaces beside RocksDB and LMDB. RocksDB takes part twice: set up like by Retina's authors, with direct I/O, no cache and no
//! filters; and tuned, with a cache as large as the store's memory.

use super::arena::Load;
use super::contest::{CPU, Claim, Contest, RATE, Stage, Tier, Trial, group};
use super::peers::{ORDERED, ORDERED_UNCACHED};
use super::shape::{Room, Shape};

const PLAIN: &str = "rocksdb-plain";
/// The most CPU per operation ÷ that of RocksDB without a cache, in B and C.
const CPU_MOST: f64 = 0.25;
/// Values of at most this many bytes count as small.
const SMALL_BYTES: u64 = 256;
/// The least scans per second ÷ RocksDB's: with small values, with others, and after most keys were deleted.
const SMALL_LEAST: f64 = 1.0;
const LARGE_LEAST: f64 = 0.5;
const DELETED_LEAST: f64 = 5.0;
const ABLATION_THREADS: u64 = 32;

pub const ORDERED_YCSB: Contest = Contest {
    name: "ordered",
    about: "YCSB over an ordered keyspace",
    items: 5_000_000,
    value_bytes: 1008,
    rounds: 5,
    room: Room::Nodes,
    tier: Tier::None,
    contenders: &[ORDERED, PLAIN, "rocksdb", "lmdb"],
    by_name: &["tapetum"],
    overwrites: 0,
    stages: ycsb,
    pictured: None,
};

fn ycsb(_: &Shape) -> Vec<Stage> {
    // The aims: relative to RocksDB without a cache; relative to RocksDB tuned and to LMDB.
    let held = [("a", "uniform", 1.5, 1.0), ("a", "zipfian", 1.5, 1.0)].into_iter().chain(
        [("b", "uniform"), ("b", "zipfian"), ("c", "uniform"), ("c", "zipfian")]
            .map(|(mix, distribution)| (mix, distribution, 2.0, 1.5)),
    );
    let held = held.map(|(mix, distribution, plain, tuned)| {
        let rate = |name, least| Claim::of(ORDERED, RATE).over(name).at_least(least);
        let cpu = Claim::of(ORDERED, CPU).over(PLAIN);
        let cpu = if mix == "a" { cpu } else { cpu.at_most(CPU_MOST) };
        let cpu_of = |name| Claim::of(ORDERED, CPU).over(name);
        let rates = [rate(PLAIN, plain), rate("rocksdb", tuned), rate("lmdb", tuned)];
        let claims = rates.into_iter().chain([cpu, cpu_of("rocksdb"), cpu_of("lmdb")]).collect();
        Trial { groups: ycsb_groups(mix), claims, ..Trial::ycsb(mix, distribution) }
    });
    let reported = [("d", "latest"), ("e", "zipfian"), ("f", "zipfian")].map(|(mix, distribution)| {
        let claims = vec![Claim::of(ORDERED, RATE).over_each(), Claim::of(ORDERED, CPU).over_each()];
        Trial { groups: ycsb_groups(mix), claims, ..Trial::ycsb(mix, distribution) }
    });
    vec![Stage::of(held.chain(reported).collect())]
}

fn ycsb_groups(mix: &str) -> Vec<Vec<super::arena::Entrant>> {
    let threads = [(8, 1), (16, 1), (32, 1), (64, 1)];
    let mut groups = vec![
        group(ORDERED, "session", &[(1, 32), (1, 128), (2, 64)]),
        group(PLAIN, "get", &threads),
        group("rocksdb", "get", &threads),
        group("lmdb", "get", &[(4, 1), (8, 1), (16, 1)]),
    ];
    // Hashed keyspaces cannot scan in order.
    if mix != "e" {
        groups.push(group("tapetum", "session", &[(1, 128)]));
    }
    groups
}

/// Scans of a hundred items from a random key, before and after nine of ten keys are deleted.
pub const ORDERED_SCAN: Contest = Contest {
    name: "ordered-scan",
    about: "scans of 100 items, cold",
    items: 2_000_000,
    rounds: 9,
    contenders: &[ORDERED, "rocksdb"],
    by_name: &[PLAIN],
    stages: scans,
    ..ORDERED_YCSB
};

fn scans(shape: &Shape) -> Vec<Stage> {
    let trial = |name: &str, removed, least| {
        let threads = [(2, 1), (4, 1), (8, 1), (16, 1)];
        let groups = vec![
            group(ORDERED, "session", &[(1, 4), (1, 16), (1, 64), (2, 16)]),
            group("rocksdb", "get", &threads),
            group(PLAIN, "get", &threads),
        ];
        let claims = vec![Claim::of(ORDERED, RATE).over_each().at_least(least), Claim::of(ORDERED, CPU).over_each()];
        Trial { name: name.to_owned(), removed, groups, claims, ..Trial::of(Load::of("scan")) }
    };
    let least = if shape.value_bytes <= SMALL_BYTES { SMALL_LEAST } else { LARGE_LEAST };
    vec![Stage::of(vec![
        trial("all keys", 0, least),
        trial("a tenth of the keys", shape.items / 10 * 9, DELETED_LEAST),
    ])]
}

/// Retina's figure 6.4: the gain of each part of the engine. First a log, with each change as its own batch, and almost no cache; then
/// images of nodes with stamps, without a log; then also the mirror cache.
pub const ORDERED_ABLATION: Contest = Contest {
    name: "ordered-ablation",
    about: "YCSB A by 32 threads: by a log (batches); stamped images (uncached); and the mirror cache",
    items: 1_000_000,
    value_bytes: 128,
    rounds: 9,
    contenders: &[ORDERED_UNCACHED, ORDERED],
    by_name: &[],
    stages: ablation,
    pictured: Some(RATE),
    ..ORDERED_YCSB
};

const BY_LOG: &str = "tapetum-ordered-uncached batches";
const BY_IMAGES: &str = "tapetum-ordered-uncached blocking";

fn ablation(_: &Shape) -> Vec<Stage> {
    let trial = |distribution| {
        let way = [(ABLATION_THREADS, 1)];
        let groups = vec![
            group(ORDERED_UNCACHED, "batches", &way),
            group(ORDERED_UNCACHED, "blocking", &way),
            group(ORDERED, "blocking", &way),
        ];
        let claims = vec![
            Claim::of(BY_IMAGES, RATE).over(BY_LOG).at_least(1.0),
            Claim::of("tapetum-ordered blocking", RATE).over(BY_IMAGES).at_least(1.0),
        ];
        Trial { groups, claims, ..Trial::ycsb("a", distribution) }
    };
    vec![Stage { sync: true, ..Stage::of(["uniform", "zipfian"].map(trial).into()) }]
}
