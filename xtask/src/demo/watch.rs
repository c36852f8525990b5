//! A client that asks a server for items at a steady rate, whether the server lives or not, and counts what it is given, tenth of
//! a second by tenth. One thread asks; any thread reads the counts.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tapetum_bench::client::Connection;
use tapetum_bench::pace::Pace;
use tapetum_bench::workload::{Distribution, Mix, Operation, Operations, Population, key};

use crate::Failure;

/// Asked for together, in requests of one key each.
const BATCH: usize = 50;
pub const BIN: Duration = Duration::from_millis(100);

pub struct Watch<'a> {
    address: SocketAddr,
    population: &'a Population,
    /// GETs a second.
    rate: u64,
    begun: Instant,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    bins: Vec<Bin>,
    /// When, since the beginning, it first failed to answer, and answered again.
    lost: Option<Duration>,
    back: Option<Duration>,
}

#[derive(Clone, Copy, Default)]
struct Bin {
    asked: u64,
    found: u64,
}

impl<'a> Watch<'a> {
    pub fn new(address: SocketAddr, population: &'a Population, rate: u64, begun: Instant) -> Watch<'a> {
        Watch { address, population, rate, begun, counts: Mutex::default() }
    }

    /// Asks until so long after the beginning. A GET counts where it was due, and as found if it was answered with its value,
    /// however often the connection broke before.
    pub fn ask(&self, until: Duration) -> Result<(), Failure> {
        let mut operations = Operations::new(self.population, Mix::named("c")?, Distribution::Zipfian, 1);
        let mut pace = Pace::new(Some(self.rate as f64 / BATCH as f64), 1, 0);
        let mut connection = None;
        while self.begun.elapsed() < until {
            let now = Instant::now();
            let Some(due) = pace.take(now) else {
                std::thread::sleep(pace.until(now));
                continue;
            };
            let indexes: Vec<u64> = (0..BATCH).filter_map(|_| read_index(operations.draw())).collect();
            let found = self.found(&mut connection, &indexes);
            self.counts.lock().expect("no panics while counting").take(
                due - self.begun,
                self.begun.elapsed(),
                found,
            )?;
        }
        Ok(())
    }

    /// How many of the items the server gave; nothing if it did not answer.
    fn found(&self, connection: &mut Option<Connection>, indexes: &[u64]) -> Result<Option<u64>, Failure> {
        if connection.is_none() {
            *connection = Connection::open(self.address).ok();
        }
        let Some(open) = connection else { return Ok(None) };
        let mut wrong = Ok(());
        let answered = ask_for(open, indexes, |index, value| {
            if wrong.is_ok() {
                wrong = self.population.values().check(index, value);
            }
        });
        wrong?;
        if answered.is_err() {
            *connection = None;
        }
        Ok(answered.ok())
    }

    /// The share of this stretch's GETs that found their item.
    pub fn hit_rate(&self, stretch: Range<Duration>) -> f64 {
        let counts = self.counts.lock().expect("no panics while counting");
        let (first, end) = (bin(stretch.start), bin(stretch.end).min(counts.bins.len()));
        let bins = &counts.bins[first.min(end)..end];
        let (asked, found) = bins.iter().fold((0, 0), |sum, bin| (sum.0 + bin.asked, sum.1 + bin.found));
        found as f64 / asked.max(1) as f64
    }

    /// When, since the beginning, the server first failed to answer, and when it answered again.
    pub fn outage(&self) -> Option<Range<Duration>> {
        let counts = self.counts.lock().expect("no panics while counting");
        Some(counts.lost?..counts.back?)
    }
}

impl Counts {
    fn take(&mut self, due: Duration, now: Duration, found: Result<Option<u64>, Failure>) -> Result<(), Failure> {
        let found = found?;
        let bin = bin(due);
        self.bins.resize(self.bins.len().max(bin + 1), Bin::default());
        self.bins[bin].asked += BATCH as u64;
        self.bins[bin].found += found.unwrap_or(0);
        match found {
            None => self.lost = self.lost.or(Some(now)),
            Some(_) if self.lost.is_some() => self.back = self.back.or(Some(now)),
            Some(_) => {}
        }
        Ok(())
    }
}

fn bin(time: Duration) -> usize {
    (time.as_nanos() / BIN.as_nanos()) as usize
}

fn read_index(operation: Operation) -> Option<u64> {
    match operation {
        Operation::Read(index) => Some(index),
        _ => None,
    }
}

fn ask_for(connection: &mut Connection, indexes: &[u64], mut each: impl FnMut(u64, &[u8])) -> io::Result<u64> {
    let keys: Vec<_> = indexes.iter().map(|index| key(*index)).collect();
    keys.iter().for_each(|key| connection.queue_get([&key[..]]));
    connection.flush()?;
    let mut found = 0;
    for index in indexes {
        connection.read_values(|value| {
            found += 1;
            each(*index, value.bytes);
        })?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_answers_is_asked_and_not_found() {
        let population = Population::new(10, tapetum_bench::workload::Values::new(8, 100));
        let watch = Watch::new("127.0.0.1:1".parse().unwrap(), &population, 1000, Instant::now());
        let mut counts = watch.counts.lock().unwrap();
        let ms = Duration::from_millis;
        counts.take(ms(50), ms(51), Ok(Some(50))).unwrap();
        counts.take(ms(150), ms(151), Ok(None)).unwrap();
        counts.take(ms(199), ms(199), Ok(None)).unwrap();
        counts.take(ms(250), ms(260), Ok(Some(25))).unwrap();
        drop(counts);
        assert_eq!(watch.outage(), Some(ms(151)..ms(260)));
        assert_eq!(watch.hit_rate(ms(0)..ms(100)), 1.0);
        assert_eq!(watch.hit_rate(ms(100)..ms(200)), 0.0);
        assert_eq!(watch.hit_rate(ms(200)..ms(9000)), 0.5);
        assert_eq!(watch.hit_rate(ms(0)..ms(300)), 0.375);
    }
}
