//! Tries the seam of depots over a place of backups: what backups and leases rely on must hold there.

use std::sync::Arc;
use std::thread;

use tapetum::backup::{Depot, Digest};
use tapetum_depot::Destination;

use crate::Failure;
use crate::arguments::Arguments;

/// The writers that put one name at once, and how often they do.
const WRITERS: u8 = 8;
const RACES: usize = 5;
/// More than is put at once.
const LARGE_BYTES: usize = 20 << 20;

/// `--at PLACE`: a folder or a URL; nobody else may use it. `--objects N`: more than 1,000 take more than one page of a list of S3.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let place = arguments.text("at").ok_or("give --at PLACE, as of tapetum backup")?;
    let objects = arguments.number("objects", 100)?;
    arguments.finish()?;
    let depot = Destination::parse(place.as_ref())?.make()?;
    put_once(&*depot)?;
    (0..RACES).try_for_each(|race| one_wins(&depot, &format!("lease/{race}")))?;
    large(&*depot)?;
    listed(&*depot, objects)?;
    println!("{place} keeps the promises of a depot");
    Ok(())
}

fn expect(holds: bool, what: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(format!("it does not hold that {what}").into()) }
}

fn put_once(depot: &dyn Depot) -> Result<(), Failure> {
    let puts = (depot.put_new("try/one", b"first")?, depot.put_new("try/one", b"second")?);
    expect(puts == (true, false) && depot.get("try/one")?.as_deref() == Some(b"first"), "the first put counts")?;
    depot.delete("try/one")?;
    depot.delete("try/one")?;
    expect(depot.get("try/one")?.is_none() && depot.list("try")?.is_empty(), "what was deleted is gone")?;
    expect(
        depot.put_new("try/empty", b"")? && depot.get("try/empty")?.as_deref() == Some(b""),
        "nothing is kept as nothing",
    )
}

fn one_wins(depot: &Arc<dyn Depot>, name: &str) -> Result<(), Failure> {
    let puts: Vec<_> = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || depot.put_new(name, &[writer]))).collect();
        writers.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let mut winners = Vec::new();
    for (writer, put) in puts.into_iter().enumerate() {
        if put.map_err(|_| "a writer panicked")?? {
            winners.push(writer as u8);
        }
    }
    expect(winners.len() == 1 && depot.get(name)? == Some(winners), "of those who put one name at once one succeeds")
}

fn large(depot: &dyn Depot) -> Result<(), Failure> {
    let bytes: Vec<u8> = (0..LARGE_BYTES).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    let name = format!("packs/{}", Digest::of(&bytes));
    let puts = (depot.put_new(&name, &bytes)?, depot.put_new(&name, &bytes)?);
    expect(puts == (true, false) && depot.get(&name)? == Some(bytes), "a large object is put once, whole")
}

fn listed(depot: &dyn Depot, objects: u64) -> Result<(), Failure> {
    for object in 0..objects {
        depot.put_new(&format!("many/{object:08}"), b"x")?;
    }
    let listed = depot.list("many")?;
    let are_in_order =
        listed.iter().enumerate().all(|(at, entry)| entry.name == format!("many/{at:08}") && entry.bytes == 1);
    expect(are_in_order && listed.len() as u64 == objects, "all objects are listed, in the order of their names")
}
