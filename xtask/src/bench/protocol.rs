//! The server by memcached's protocol, over loopback, beside memcached and the disk's limit.

use std::time::Duration;

use super::arena::Load;
use super::contest::{CPU, Claim, Contest, RATE, Stage, Tier, Trial, group};
use super::peers::EXPORTING;
use super::shape::{Room, Shape};

const LIMIT_DEPTHS: [(u64, u64); 3] = [(1, 64), (1, 128), (1, 256)];

/// GETs that DRAM cannot answer, with one server thread and with two.
pub const MISSES: Contest = Contest {
    name: "misses",
    about: "pipelined GETs over loopback, cold",
    items: 2_000_000,
    value_bytes: 1008,
    rounds: 11,
    room: Room::Ample,
    tier: Tier::None,
    contenders: &["server", "limit"],
    by_name: &[],
    overwrites: 0,
    stages: misses,
    pictured: None,
};

fn misses(_: &Shape) -> Vec<Stage> {
    let stage = |(name, server_threads)| {
        let groups = vec![
            group("limit", "read", &LIMIT_DEPTHS),
            group("server", "get", &[(16, 16), (32, 16), (64, 16), (128, 8), (256, 4)]),
        ];
        let claims = vec![Claim::of("server", RATE).over("limit").at_least(0.9)];
        let trial = Trial { groups, claims, ..Trial::of(Load::of("c")) };
        Stage { name, server_threads, ..Stage::of(vec![trial]) }
    };
    [("one server thread", 1), ("two server threads", 2)].map(stage).into()
}

/// Each GET is a flash read of the server, with one server thread, over the number of connections that is fastest for each contender.
/// Replies of a connection come in order, so that completed reads wait behind a slow one.
pub const MEMCACHED_GET: Contest = Contest {
    name: "memcached-get",
    about: "GETs over loopback, one server thread",
    rounds: 15,
    contenders: &["server", "memcached", "limit"],
    stages: memcached_get,
    ..MISSES
};

fn memcached_get(_: &Shape) -> Vec<Stage> {
    let trial = |(name, api, ways, least): (&str, &'static str, &[(u64, u64)], f64)| Trial {
        name: name.to_owned(),
        groups: vec![group("limit", "read", &LIMIT_DEPTHS), group("server", api, ways), group("memcached", api, ways)],
        claims: vec![
            Claim::of("server", RATE).over_smaller(["memcached", "limit"]).at_least(least),
            Claim::of("server", RATE).over("memcached"),
        ],
        ..Trial::of(Load::of("c"))
    };
    let deep = [(16, 16), (32, 16), (64, 16)];
    let trials = [
        trial(("single GETs", "get", &[(64, 1), (128, 1), (256, 1), (512, 1)], 0.7)),
        trial(("pipelined GETs", "get", &deep, 0.85)),
        trial(("multi-gets", "multiget", &deep, 0.85)),
    ];
    vec![Stage::of(trials.into())]
}

/// GETs that the DRAM tier answers, with one server thread.
pub const DRAM_GET: Contest = Contest {
    name: "dram-get",
    about: "GETs over loopback, all in DRAM, one server thread",
    items: 100_000,
    value_bytes: 200,
    tier: Tier::All,
    contenders: &["server", "memcached"],
    stages: dram_get,
    ..MISSES
};

fn dram_get(_: &Shape) -> Vec<Stage> {
    let trial = |(name, api, way, least): (&str, &'static str, (u64, u64), f64)| Trial {
        name: name.to_owned(),
        groups: vec![group("server", api, &[way]), group("memcached", api, &[way])],
        claims: vec![Claim::of("server", RATE).over("memcached").at_least(least)],
        ..Trial::of(Load::of("c"))
    };
    let trials = [
        // More than enough for every item to get into the tier.
        Trial { warm_up: Duration::from_secs(10), ..trial(("32 deep over 4 connections", "get", (4, 32), 2.0)) },
        trial(("one at a time over 64 connections", "get", (64, 1), 1.0)),
        trial(("over UDP, 32 datagrams on their way over 4 sockets", "udp", (4, 32), 1.2)),
    ];
    vec![Stage::of(trials.into())]
}

/// The cost of an idle block device for memcached's clients: the same server with a device exported to an idle client, and without.
pub const IDLE_EXPORT: Contest = Contest {
    name: "idle-export",
    about: "over loopback, all in DRAM, one server thread, with a block device that is exported and idle, and without",
    contenders: &["server", EXPORTING],
    stages: idle_export,
    ..DRAM_GET
};

fn idle_export(_: &Shape) -> Vec<Stage> {
    let trial = |(name, mix)| Trial {
        name: String::from(name),
        groups: ["server", EXPORTING].map(|contender| group(contender, "get", &[(64, 1)])).into(),
        claims: vec![
            Claim::of(EXPORTING, RATE).over("server").at_least(0.95),
            Claim::of(EXPORTING, CPU).over("server"),
        ],
        ..Trial::of(Load::of(mix))
    };
    // Every item gets into the tier before the GETs.
    let gets = Trial { warm_up: Duration::from_secs(10), ..trial(("GETs", "c")) };
    vec![Stage::of(vec![gets, trial(("SETs", "write"))])]
}
