//! Every contender on YCSB A, B and C, uniform, over few items: within five minutes.

use super::arena::{Arena, Entrant, Load, Shape};
use super::outcome::Outcome;
use crate::Failure;
use crate::arguments::Arguments;

const MIXES: [(&str, &str); 3] = [("a", "YCSB A"), ("b", "YCSB B"), ("c", "YCSB C")];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 400_000, 1008)?;
    let rounds = arguments.number("rounds", 3)?;
    let names = ["tapetum", "limit", "rocksdb", "rocksdb-blob", "lmdb", "server", "memcached", "extstore"];
    let mut arena = Arena::open(arguments, "quick", &shape, &names, &names)?;
    let about = format!("{} items of {} bytes, uniform, sync off", shape.items, shape.value_bytes);
    println!("quick: {about}");
    arena.load(0)?;
    arena.start_all(false)?;
    let mut outcome = Outcome::new(arguments, "quick", about);
    for (mix, named) in MIXES {
        let entrants: Vec<Entrant> = entrants().into_iter().filter(|entrant| arena.has(entrant.contender)).collect();
        let able = |entrant: &Entrant| mix == "c" || entrant.contender != "limit";
        let entrants: Vec<Entrant> = entrants.into_iter().filter(able).collect();
        let series = arena.rounds(&entrants, &Load::of(mix), rounds)?;
        outcome.beside(named, &entrants, series);
    }
    arena.end_all()?;
    outcome.end()
}

fn entrants() -> Vec<Entrant> {
    vec![
        Entrant::new("tapetum", "session", 1, 128),
        Entrant::new("limit", "read", 1, 128),
        Entrant::new("rocksdb", "get", 16, 1),
        Entrant::new("rocksdb", "multiget", 4, 32),
        Entrant::new("rocksdb-blob", "get", 16, 1),
        Entrant::new("lmdb", "get", 8, 1),
        Entrant::new("server", "get", 64, 1),
        Entrant::new("memcached", "get", 64, 1),
        Entrant::new("extstore", "get", 64, 1),
    ]
}
