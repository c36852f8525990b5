//! The DRAM tier's hit rate beside FIFO's and LRU's, over traces: the tier itself, as the store has it, without sockets and flash.
//!
//! FIFO and LRU get the memory that the tier has in slots, of which an item takes as much there as here: so orders are compared, and
//! what classes of slots cost. Another LRU gets all the memory that the tier takes, with its index and lists, and an item
//! takes what it does in memcached.

use tapetum::tier::Tier;
use tapetum::{Access, DramItem, Marks, Slabs};
use tapetum_bench::policies::{Cache, Fifo, Lru};
use tapetum_bench::traces::{self, Trace};
use tapetum_kernels::hash::HashKey;

use super::KEY_BYTES;
use super::outcome::{Outcome, Reach};
use super::series::Spread;
use crate::Failure;
use crate::arguments::Arguments;

/// The cache's memory, of the bytes of all keys and values.
const PERCENTS: [u64; 3] = [1, 10, 30];
/// Before the value in a slot of the tier.
const HEADER_BYTES: usize = 40;
/// In memcached beside key and value, with CAS: the header, the ends of both, a place in the hash table.
const MEMCACHED_BESIDE_BYTES: u64 = 56 + 3 + 8;
/// Larger than any of a trace.
const VALUE_BYTES_MAX: usize = 4096;
const MORE_ITEMS: &str = "that is too little memory for a tier that takes the largest value: give more --items";

/// One way to count hits in one trace with one size of the cache; each round's hit rate of each cache.
struct Line {
    trace: &'static str,
    window: &'static str,
    percent: u64,
    rates: Vec<[f64; 4]>,
}

impl Line {
    fn spread(&self, figure: impl Fn(&[f64; 4]) -> f64) -> Spread {
        Spread::of(self.rates.iter().map(figure))
    }

    fn name(&self) -> String {
        match self.window {
            "" => format!("{}, {} %", self.trace, self.percent),
            window => format!("{}, {window}, {} %", self.trace, self.percent),
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 500_000)?;
    let rounds = arguments.number("rounds", 3)?;
    arguments.finish()?;
    let about = format!("hit rate of the DRAM tier, {items} items with values of 32 to {VALUE_BYTES_MAX} bytes");
    println!("hit-rate: {about}");
    // Of few items a small part is too little memory for any tier.
    let percents = arguments.sized(&PERCENTS[..], &PERCENTS[2..]);
    let mut lines: Vec<Line> = Vec::new();
    for round in 0..rounds {
        let mut found = Vec::new();
        for trace in traces::all(items, round) {
            for &percent in percents {
                found.extend(measure(&trace, items, percent)?);
            }
        }
        match round {
            0 => lines = found,
            _ => lines.iter_mut().zip(found).for_each(|(line, found)| line.rates.extend(found.rates)),
        }
    }
    let mut outcome = Outcome::new(arguments, "hit-rate", about);
    outcome.columns(&["trace, memory ÷ data", "tier", "FIFO", "LRU", "LRU with memcached's overhead"]);
    for line in &lines {
        outcome.line(line.name(), (0..4).map(|cache| line.spread(|rates| rates[cache])).collect());
    }
    let least = |cache: usize| {
        let ratios = lines.iter().map(|line| line.spread(|rates| rates[0] / rates[cache]));
        ratios.min_by(|a, b| a.median.total_cmp(&b.median)).expect("there are lines")
    };
    outcome.hold("the tier's ÷ FIFO's, the least", least(1), Reach::Reported);
    outcome.hold("the tier's ÷ LRU's, the least", least(2), Reach::Reported);
    outcome.end()
}

/// A line for each window of the trace.
fn measure(trace: &Trace, items: u64, percent: u64) -> Result<Vec<Line>, Failure> {
    let data_bytes: u64 = (0..items).map(|item| KEY_BYTES + (trace.value_bytes)(item) as u64).sum();
    let bytes = data_bytes * percent / 100;
    let mut tier = TierCache::new(bytes)?;
    let tier_rates = hit_rates(&mut tier, trace);
    let slots = tier.slots_bytes();
    if slots.iter().all(|slot| *slot < HEADER_BYTES + VALUE_BYTES_MAX) {
        return Err(MORE_ITEMS.into());
    }
    let slots_bytes: u64 = tier.tier.slabs(0).iter().map(|class| class.slots * class.slot_bytes as u64).sum();
    let in_slots = move |value_bytes: usize| {
        let needed = HEADER_BYTES + value_bytes;
        *slots.iter().find(|slot| **slot >= needed).expect("a slot that is large enough") as u64
    };
    let fifo_rates = hit_rates(&mut Fifo::new(slots_bytes, Box::new(in_slots.clone())), trace);
    let lru_rates = hit_rates(&mut Lru::new(slots_bytes, Box::new(in_slots)), trace);
    let as_memcached = |value_bytes| KEY_BYTES + value_bytes as u64 + MEMCACHED_BESIDE_BYTES;
    let memcached_rates = hit_rates(&mut Lru::new(tier.tier.bytes(), Box::new(as_memcached)), trace);
    let line = |(number, window): (usize, &&'static str)| Line {
        trace: trace.name,
        window,
        percent,
        rates: vec![[tier_rates[number], fifo_rates[number], lru_rates[number], memcached_rates[number]]],
    };
    Ok(trace.windows.iter().enumerate().map(line).collect())
}

/// Of the asks in each window of the trace, those that found their item.
fn hit_rates(cache: &mut impl Cache, trace: &Trace) -> Vec<f64> {
    let mut counts = vec![(0_u64, 0_u64); trace.windows.len()];
    for ask in &trace.asks {
        let hit = cache.ask(ask.item, (trace.value_bytes)(ask.item));
        if let Some(window) = ask.window {
            let (asks, hits) = &mut counts[usize::from(window)];
            *asks += 1;
            *hits += u64::from(hit);
        }
    }
    counts.iter().map(|(asks, hits)| *hits as f64 / *asks as f64).collect()
}

struct TierCache {
    tier: Tier,
    value: Vec<u8>,
    found: Vec<u8>,
}

impl TierCache {
    fn new(bytes: u64) -> Result<TierCache, Failure> {
        let tier = Tier::new(bytes, Slabs::default())?.ok_or(MORE_ITEMS)?;
        Ok(TierCache { tier, value: vec![7; VALUE_BYTES_MAX], found: Vec::new() })
    }

    /// Of each class.
    fn slots_bytes(&self) -> Vec<usize> {
        self.tier.slabs(0).iter().map(|class| class.slot_bytes).collect()
    }
}

impl Cache for TierCache {
    fn ask(&mut self, item: u64, value_bytes: usize) -> bool {
        let hash = HashKey::of(&[7; 16], &item.to_le_bytes());
        self.found.clear();
        let there = self.tier.get((hash, 0), &mut self.found, |_, _, _| true).is_some();
        if !there {
            let header = DramItem { flags: 0, expiry: 0, stamp: 1, value_bytes, marks: Marks::NONE };
            self.tier.put((hash, 0), (header, &self.value[..value_bytes]), Access { was_read: true, idle_seconds: 0 });
        }
        there
    }
}
