//! The embedded store beside the disk's limit and the embedded rivals.

use std::time::Duration;

use tapetum_bench::turn::Report;

use super::arena::Load;
use super::contest::{CPU, Claim, Contest, Figure, P50, RATE, Stage, Tier, Trial, group};
use super::peers::{self, ON_DRIVE_THREAD};
use super::shape::{Room, Shape};

const HOST_CPU: Figure = ("host CPU µs an operation", Report::host_cpu_us_per_operation);
const DRIVE_CPU: Figure = ("drive CPU µs an operation", Report::drive_cpu_us_per_operation);
const RIVAL_THREADS: [(u64, u64); 4] = [(8, 1), (16, 1), (32, 1), (64, 1)];

/// The common settings of these contests.
const COLD: Contest = Contest {
    name: "",
    about: "uniform GETs, cold",
    items: 2_000_000,
    value_bytes: 1008,
    rounds: 15,
    room: Room::Ample,
    tier: Tier::None,
    contenders: &["tapetum", "limit", "rocksdb"],
    by_name: &[],
    overwrites: 0,
    stages: |_| Vec::new(),
    pictured: None,
};

/// Every contender, each asked in one way, in five minutes.
pub const QUICK: Contest = Contest {
    name: "quick",
    about: "YCSB, uniform, sync off",
    items: 400_000,
    rounds: 3,
    contenders: &["tapetum", "limit", "rocksdb", "rocksdb-blob", "lmdb", "server", "memcached", "extstore"],
    stages: quick,
    ..COLD
};

fn quick(_: &Shape) -> Vec<Stage> {
    let trial = |mix| {
        let ways = [
            ("tapetum", "session", 1, 128),
            ("limit", "read", 1, 128),
            ("rocksdb", "get", 16, 1),
            ("rocksdb", "multiget", 4, 32),
            ("rocksdb-blob", "get", 16, 1),
            ("lmdb", "get", 8, 1),
            ("server", "get", 64, 1),
            ("memcached", "get", 64, 1),
            ("extstore", "get", 64, 1),
        ];
        // The limit cannot write.
        let able = ways.into_iter().filter(|(contender, ..)| mix == "c" || *contender != "limit");
        let groups = able.map(|(contender, api, threads, depth)| group(contender, api, &[(threads, depth)])).collect();
        Trial { groups, claims: vec![Claim::of("tapetum", RATE).over_each()], ..Trial::ycsb(mix, "uniform") }
    };
    vec![Stage::of(["a", "b", "c"].map(trial).into())]
}

pub const COLD_GET: Contest = Contest { name: "cold-get", items: 5_000_000, stages: cold_get, ..COLD };

fn cold_get(_: &Shape) -> Vec<Stage> {
    let groups = vec![
        group("tapetum", "session", &[(1, 64), (1, 128), (1, 256)]),
        group("limit", "read", &[(1, 32), (1, 64), (1, 128), (1, 256)]),
        group("rocksdb", "get", &[(4, 1), (8, 1), (16, 1), (32, 1), (64, 1)]),
        group("rocksdb", "multiget", &[(1, 32), (1, 128), (2, 64), (4, 32), (8, 32)]),
    ];
    let claims = vec![
        Claim::of("tapetum", RATE).over("limit").at_least(0.9),
        Claim::of("tapetum", CPU).at_most(3.0),
        Claim::of("limit", CPU),
        Claim::of("tapetum", CPU).over("rocksdb get").at_most(0.25),
        Claim::of("tapetum", RATE).over("rocksdb get").at_least(1.6),
        // An entrant near the limit cannot be far ahead of others.
        Claim::of("tapetum", RATE).over("rocksdb multiget").at_least(1.3).unless("limit", 0.9),
    ];
    vec![Stage::of(vec![Trial { groups, claims, ..Trial::of(Load::of("c")) }])]
}

/// One thread with one GET after the other, each a flash read.
pub const BLOCKING_GET: Contest = Contest { name: "blocking-get", stages: blocking_get, ..COLD };

fn blocking_get(_: &Shape) -> Vec<Stage> {
    let ways = [("tapetum", "blocking"), ("limit", "read"), ("rocksdb", "get")];
    let groups = ways.map(|(contender, api)| group(contender, api, &[(1, 1)])).into();
    let claims = vec![Claim::of("tapetum", P50).over("limit").at_most(1.3), Claim::of("tapetum", P50).over("rocksdb")];
    vec![Stage::of(vec![Trial { groups, claims, ..Trial::of(Load::of("c")) }])]
}

/// With the device half of the drive on its own thread, but not on its own core.
pub const DRIVE_THREAD: Contest = Contest {
    name: "drive-thread",
    contenders: &[ON_DRIVE_THREAD, "tapetum", "rocksdb"],
    stages: drive_thread,
    ..COLD
};

fn drive_thread(_: &Shape) -> Vec<Stage> {
    let depths = [(1, 64), (1, 128), (1, 256)];
    let groups = vec![
        group(ON_DRIVE_THREAD, "session", &depths),
        group("tapetum", "session", &depths),
        group("rocksdb", "get", &[(4, 1), (8, 1), (16, 1), (32, 1)]),
    ];
    let claims = vec![
        // RocksDB's CPU is all on the host.
        Claim::of(ON_DRIVE_THREAD, HOST_CPU).over("rocksdb").at_most(0.125),
        Claim::of(ON_DRIVE_THREAD, HOST_CPU),
        Claim::of(ON_DRIVE_THREAD, DRIVE_CPU),
        Claim::of("tapetum", CPU),
        Claim::of(ON_DRIVE_THREAD, RATE).over("tapetum"),
    ];
    vec![Stage::of(vec![Trial { groups, claims, ..Trial::of(Load::of("c")) }])]
}

/// With the drive in a process of its own: the kernel tells apart what host and drive use.
pub const DRIVE_PROCESS: Contest = Contest {
    name: "drive-process",
    contenders: &[peers::DRIVE_PROCESS, peers::DRIVE_PROCESS_POLLING, "tapetum", "rocksdb"],
    stages: drive_process,
    ..COLD
};

fn drive_process(_: &Shape) -> Vec<Stage> {
    let depths = [(1, 64), (1, 128), (1, 256)];
    let gets = Trial {
        groups: vec![
            group(peers::DRIVE_PROCESS, "session", &depths),
            group(peers::DRIVE_PROCESS_POLLING, "session", &depths),
            group("tapetum", "session", &depths),
            group("rocksdb", "get", &[(4, 1), (8, 1), (16, 1), (32, 1)]),
        ],
        claims: vec![
            Claim::of(peers::DRIVE_PROCESS, RATE).over("tapetum").at_least(0.9),
            Claim::of(peers::DRIVE_PROCESS, CPU).over("tapetum").at_most(1.3),
            Claim::of(peers::DRIVE_PROCESS, HOST_CPU).over("rocksdb").at_most(0.1),
            Claim::of(peers::DRIVE_PROCESS, HOST_CPU),
            Claim::of(peers::DRIVE_PROCESS, DRIVE_CPU),
            Claim::of(peers::DRIVE_PROCESS, RATE).over("rocksdb"),
            Claim::of(peers::DRIVE_PROCESS_POLLING, RATE).over("tapetum"),
            Claim::of(peers::DRIVE_PROCESS_POLLING, CPU).over("tapetum"),
            Claim::of(peers::DRIVE_PROCESS_POLLING, HOST_CPU).over("rocksdb"),
        ],
        ..Trial::of(Load::of("c"))
    };
    vec![Stage::of(vec![gets])]
}

/// Each mix with YCSB's distribution for it. Copies of hot items may take half of the store's memory; the rivals' block caches get the
/// same.
pub const YCSB: Contest = Contest {
    name: "ycsb",
    about: "YCSB, sync off",
    items: 1_000_000,
    rounds: 5,
    tier: Tier::Half,
    contenders: &["tapetum", "rocksdb", "rocksdb-blob"],
    by_name: &["lmdb"],
    stages: ycsb,
    ..COLD
};

fn ycsb(_: &Shape) -> Vec<Stage> {
    let workloads =
        [("a", "zipfian"), ("b", "zipfian"), ("c", "zipfian"), ("d", "latest"), ("e", "zipfian"), ("f", "zipfian")];
    let trial = |(mix, distribution)| {
        let mut groups = vec![
            group("rocksdb", "get", &RIVAL_THREADS),
            group("rocksdb-blob", "get", &RIVAL_THREADS),
            group("lmdb", "get", &[(4, 1), (8, 1), (16, 1)]),
        ];
        // Hashed keyspaces cannot scan in order.
        if mix != "e" {
            groups.insert(0, group("tapetum", "session", &[(1, 128), (1, 512), (2, 128)]));
        }
        Trial { groups, claims: vec![Claim::of("tapetum", RATE).over_each()], ..Trial::ycsb(mix, distribution) }
    };
    vec![Stage::of(workloads.map(trial).into())]
}

/// The worst case of a store: as full as allowed, after many overwrites.
pub const YCSB_A: Contest = Contest {
    name: "ycsb-a",
    about: "YCSB A, uniform, 80 % full, after overwrites",
    items: 5_000_000,
    rounds: 9,
    room: Room::Full,
    contenders: &["tapetum", "rocksdb"],
    by_name: &["rocksdb-blob"],
    overwrites: 3,
    stages: ycsb_a,
    ..COLD
};

fn ycsb_a(_: &Shape) -> Vec<Stage> {
    let stage = |(name, sync)| {
        let trial = Trial {
            sweep: Duration::from_millis(1500),
            groups: vec![
                group("tapetum", "session", &[(1, 128), (1, 512), (2, 128), (2, 512)]),
                [group("rocksdb", "get", &RIVAL_THREADS), group("rocksdb", "multiget", &[(4, 32), (16, 32)])].concat(),
                group("rocksdb-blob", "get", &RIVAL_THREADS),
            ],
            claims: vec![Claim::of("tapetum", RATE).over_each().at_least(2.0)],
            ..Trial::of(Load::of("a").lasting(Duration::from_secs(3)))
        };
        Stage { name, sync, ..Stage::of(vec![trial]) }
    };
    [("sync off", false), ("every write synced", true)].map(stage).into()
}
