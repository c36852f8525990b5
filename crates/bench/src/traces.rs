//! What caches are asked for, in order: skewed loads with what spoils them. A function of a seed; an item's value has as many
//! bytes as its number says.

use crate::random::{Random, Zipfian, mix};

/// Of one item an ask, and where it counts: the number of a window, or nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub item: u64,
    pub window: Option<u8>,
}

pub struct Trace {
    pub name: &'static str,
    /// In which of its parts hits are counted.
    pub windows: &'static [&'static str],
    pub asks: Vec<Ask>,
    pub value_bytes: fn(u64) -> usize,
}

/// Asks for each item there is, in the mean; the first half of them fills the cache.
const ASKS_PER_ITEM: u64 = 8;
const EXPONENT: f64 = 0.99;
const EXPONENT_FLAT: f64 = 0.8;
/// One in so many items is hot at a time, where the hot ones move.
const HOT_SHARE: u64 = 20;
/// As often all hot items are others.
const HOT_TIMES: u64 = 8;
/// A value of a few bytes, or of so many times as many.
const VALUE_BYTES_MIN: f64 = 32.0;
const VALUE_TIMES: f64 = 128.0;
const VALUE_BYTES_SMALL: usize = 100;
const VALUE_BYTES_LARGE: usize = 1000;
/// Items of this bit have small values, where sizes change.
const SMALL: u64 = 1 << 40;
/// Items of this bit are asked for once.
const ONCE: u64 = 1 << 41;

pub fn all(items: u64, seed: u64) -> Vec<Trace> {
    vec![
        zipfian("zipfian 0.99", items, EXPONENT, seed),
        zipfian("zipfian 0.8", items, EXPONENT_FLAT, seed),
        scanned(items, seed),
        hot_set_moves(items, seed),
        asked_once(items, seed),
        sizes_change(items, seed),
    ]
}

/// Evenly spread over all orders of magnitude.
fn mixed_bytes(item: u64) -> usize {
    let unit = mix(item) as f64 / u64::MAX as f64;
    (VALUE_BYTES_MIN * VALUE_TIMES.powf(unit)) as usize
}

fn sized_by_kind(item: u64) -> usize {
    if item & SMALL == 0 { VALUE_BYTES_LARGE } else { VALUE_BYTES_SMALL }
}

/// The second half of them is the only window.
fn in_second_half(count: u64, mut draw: impl FnMut(u64) -> u64) -> Vec<Ask> {
    (0..count).map(|n| Ask { item: draw(n), window: (n >= count / 2).then_some(0) }).collect()
}

fn zipfian(name: &'static str, items: u64, exponent: f64, seed: u64) -> Trace {
    let (zipfian, mut random) = (Zipfian::new(items, exponent), Random::new(mix(seed)));
    let asks = in_second_half(items * ASKS_PER_ITEM, |_| zipfian.draw(&mut random));
    Trace { name, windows: &[""], asks, value_bytes: mixed_bytes }
}

/// Someone reads every item once, in no order of how hot they are, every other ask being his. His own do not count.
fn scanned(items: u64, seed: u64) -> Trace {
    let (zipfian, mut random) = (Zipfian::new(items, EXPONENT), Random::new(mix(seed)));
    let mut draw = |window| Ask { item: zipfian.draw(&mut random), window };
    // Without a common factor with their number, so that every item has its turn.
    let step = (items / 3..).find(|step| greatest_common_divisor(*step, items) == 1).expect("such numbers are many");
    let mut asks = Vec::new();
    asks.extend((0..items * ASKS_PER_ITEM / 2).map(|_| draw(None)));
    asks.extend((0..items).map(|_| draw(Some(0))));
    for n in 0..items {
        asks.push(Ask { item: n * step % items, window: None });
        asks.push(draw(Some(1)));
    }
    asks.extend((0..items / 10).map(|_| draw(Some(2))));
    Trace {
        name: "zipfian 0.99, a scan of all",
        windows: &["before", "beside it", "right after"],
        asks,
        value_bytes: mixed_bytes,
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Nine of ten asks go to a twentieth of the items, and which these are moves on steadily.
fn hot_set_moves(items: u64, seed: u64) -> Trace {
    let mut random = Random::new(mix(seed));
    let (count, hot) = (items * ASKS_PER_ITEM, items / HOT_SHARE);
    let asks = in_second_half(count, |n| match random.one_in(10) {
        true => random.below(items),
        false => (n * HOT_TIMES * hot / count + random.below(hot)) % items,
    });
    Trace { name: "a hot twentieth that moves", windows: &[""], asks, value_bytes: mixed_bytes }
}

/// Every other ask is for what nobody asks for again, and does not count.
fn asked_once(items: u64, seed: u64) -> Trace {
    let (zipfian, mut random) = (Zipfian::new(items, EXPONENT), Random::new(mix(seed)));
    let asks = in_second_half(items * ASKS_PER_ITEM / 2, |_| zipfian.draw(&mut random));
    let once = (0..).map(|n| Ask { item: ONCE | n, window: None });
    let asks = asks.into_iter().zip(once).flat_map(|(ask, once)| [ask, once]).collect();
    Trace { name: "zipfian 0.99, every other asked once", windows: &[""], asks, value_bytes: mixed_bytes }
}

/// First all items are small, then all are large: memory has to move from class to class.
fn sizes_change(items: u64, seed: u64) -> Trace {
    let (zipfian, mut random) = (Zipfian::new(items, EXPONENT), Random::new(mix(seed)));
    let count = items * ASKS_PER_ITEM;
    let mut draw = |kind, window| Ask { item: zipfian.draw(&mut random) | kind, window };
    let mut asks: Vec<Ask> = (0..count / 2).map(|_| draw(SMALL, None)).collect();
    asks.extend((0..items).map(|_| draw(0, Some(0))));
    asks.extend((items..count / 2).map(|_| draw(0, Some(1))));
    Trace {
        name: "zipfian 0.99, small values, then large",
        windows: &["at once", "later"],
        asks,
        value_bytes: sized_by_kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    const ITEMS: u64 = 1000;

    fn asked(trace: &Trace) -> HashMap<u64, usize> {
        let mut asked = HashMap::new();
        trace.asks.iter().for_each(|ask| *asked.entry(ask.item).or_default() += 1);
        asked
    }

    #[test]
    fn a_seed_gives_the_same_asks_and_every_window_has_some() {
        for (one, again) in all(ITEMS, 7).iter().zip(all(ITEMS, 7)) {
            assert_eq!(one.asks, again.asks, "{}", one.name);
            let windows: HashSet<u8> = one.asks.iter().filter_map(|ask| ask.window).collect();
            assert_eq!(windows.len(), one.windows.len(), "{}", one.name);
        }
    }

    #[test]
    fn a_scan_comes_by_every_item() {
        let asked = asked(&scanned(ITEMS, 7));
        assert!((0..ITEMS).all(|item| asked.contains_key(&item)));
    }

    #[test]
    fn half_of_the_asks_are_for_what_is_asked_once() {
        let trace = asked_once(ITEMS, 7);
        let once = asked(&trace).into_iter().filter(|(item, _)| item & ONCE != 0);
        assert_eq!(once.map(|(_, times)| times).sum::<usize>(), trace.asks.len() / 2);
        assert!(asked(&trace).iter().all(|(item, times)| item & ONCE == 0 || *times == 1));
    }

    #[test]
    fn hot_items_are_hot_for_a_while() {
        let trace = hot_set_moves(ITEMS, 7);
        let first: HashSet<u64> = (0..ITEMS / HOT_SHARE).collect();
        let hot = |asks: &[Ask]| asks.iter().filter(|ask| first.contains(&ask.item)).count() * 100 / asks.len();
        let (begin, end) = trace.asks.split_at(trace.asks.len() / 20);
        assert!(hot(begin) > 50, "{}", hot(begin));
        assert!(hot(&end[end.len() / 2..]) < 10);
    }

    #[test]
    fn values_are_of_all_sizes() {
        let bytes: Vec<usize> = (0..ITEMS).map(mixed_bytes).collect();
        assert!(bytes.iter().all(|bytes| (32..=4096).contains(bytes)));
        for least in [32, 64, 256, 1024] {
            let share = bytes.iter().filter(|bytes| (least..2 * least).contains(*bytes)).count();
            assert!((100..190).contains(&share), "{share} from {least} on");
        }
    }
}
