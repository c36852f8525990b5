//! YCSB's workloads: the next operation, its item, and an item's value. Everything is a function of a seed, and every value names its item,
//! so that a contender's answer can be checked without storing the values.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};

use tapetum_kernels::scan::Format;
use tapetum_kernels::scan::fields::{FieldReader, RawField};

use crate::Failure;
use crate::random::{Random, Zipfian, key16, mix};

/// YCSB's exponent.
const ZIPFIAN_EXPONENT: f64 = 0.99;
/// One item in so many is hot.
const HOT_SHARE: u64 = 100;
const SCAN_ITEMS_MAX: u64 = 100;
const POOL_BYTES: usize = 1 << 20;
/// Values consist of pieces of this length: a part of each is random, and the rest is zero.
const PIECE_BYTES: usize = 64;

pub type Key = [u8; 16];

/// Percentages of the operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    pub read: u64,
    pub update: u64,
    pub insert: u64,
    pub scan: u64,
    pub read_modify_write: u64,
    /// The least items of a scan; the most is a hundred.
    pub scan_items_min: u64,
}

impl Mix {
    const NONE: Mix = Mix { read: 0, update: 0, insert: 0, scan: 0, read_modify_write: 0, scan_items_min: 1 };

    /// `a` to `f` are YCSB's. `write` only overwrites; `scan` only scans a hundred items each.
    pub fn named(name: &str) -> Result<Mix, Failure> {
        Ok(match name {
            "a" => Mix { read: 50, update: 50, ..Mix::NONE },
            "b" => Mix { read: 95, update: 5, ..Mix::NONE },
            "c" => Mix { read: 100, ..Mix::NONE },
            "d" => Mix { read: 95, insert: 5, ..Mix::NONE },
            "e" => Mix { scan: 95, insert: 5, ..Mix::NONE },
            "f" => Mix { read: 50, read_modify_write: 50, ..Mix::NONE },
            "write" => Mix { update: 100, ..Mix::NONE },
            "scan" => Mix { scan: 100, scan_items_min: SCAN_ITEMS_MAX, ..Mix::NONE },
            other => return Err(format!("there is no mix {other}; there are a to f, write and scan").into()),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distribution {
    Uniform,
    /// Few items get most of the operations; they are scattered over all.
    Zipfian,
    /// The newest items get most of the operations.
    Latest,
    /// This percentage of the operations goes to the first hundredth of the items, the rest to all others; uniformly within both.
    Hot(u64),
}

impl Distribution {
    pub fn named(name: &str) -> Result<Distribution, Failure> {
        match name {
            "uniform" => Ok(Distribution::Uniform),
            "zipfian" => Ok(Distribution::Zipfian),
            "latest" => Ok(Distribution::Latest),
            other => match other.strip_prefix("hot-").and_then(|percent| percent.parse().ok()) {
                Some(percent @ 0..=100) => Ok(Distribution::Hot(percent)),
                _ => {
                    Err(format!("there is no distribution {other}; there are uniform, zipfian, latest and hot-PERCENT")
                        .into())
                }
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Read(u64),
    Update(u64),
    Insert(u64),
    /// The first item, and the number of items, in the order of their keys.
    Scan(u64, u64),
    ReadModifyWrite(u64),
}

/// The existing items. All threads of a contender share this.
pub struct Population {
    /// Number of items loaded or inserted.
    count: AtomicU64,
    zipfian: OnceLock<Zipfian>,
    values: Values,
}

impl Population {
    pub fn new(count: u64, values: Values) -> Population {
        Population { count: AtomicU64::new(count), zipfian: OnceLock::new(), values }
    }

    pub fn values(&self) -> &Values {
        &self.values
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Ranks are drawn for the number of items at the first call: later inserts hardly change the distribution.
    fn rank(&self, random: &mut Random) -> u64 {
        let zipfian = self.zipfian.get_or_init(|| Zipfian::new(self.count().max(3), ZIPFIAN_EXPONENT));
        zipfian.draw(random)
    }

    fn draw(&self, distribution: Distribution, random: &mut Random) -> u64 {
        let count = self.count();
        match distribution {
            Distribution::Uniform => random.below(count),
            Distribution::Zipfian => mix(self.rank(random)) % count,
            Distribution::Latest => count - 1 - self.rank(random).min(count - 1),
            Distribution::Hot(percent) => {
                let hot = (count / HOT_SHARE).max(1);
                if random.below(100) < percent { random.below(hot) } else { hot + random.below(count - hot) }
            }
        }
    }
}

/// The operations of one thread.
pub struct Operations<'a> {
    population: &'a Population,
    mix: Mix,
    distribution: Distribution,
    random: Random,
}

impl<'a> Operations<'a> {
    pub fn new(population: &'a Population, mix: Mix, distribution: Distribution, seed: u64) -> Operations<'a> {
        Operations { population, mix, distribution, random: Random::new(crate::random::mix(seed)) }
    }

    pub fn draw(&mut self) -> Operation {
        let mut dice = self.random.below(100);
        let mut falls = |share: u64| {
            let falls = dice < share;
            dice = dice.wrapping_sub(share);
            falls
        };
        let Mix { read, update, insert, scan, .. } = self.mix;
        let (read, update, insert, scan) = (falls(read), falls(update), falls(insert), falls(scan));
        if !(read || update || scan) && insert {
            // A reader that overtakes the write finds nothing, which YCSB allows and a report counts.
            return Operation::Insert(self.population.count.fetch_add(1, Ordering::Relaxed));
        }
        let index = self.population.draw(self.distribution, &mut self.random);
        match () {
            () if read => Operation::Read(index),
            () if update => Operation::Update(index),
            () if scan => {
                let least = self.mix.scan_items_min;
                Operation::Scan(index, least + self.random.below(SCAN_ITEMS_MAX + 1 - least))
            }
            () => Operation::ReadModifyWrite(index),
        }
    }

    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

pub fn key(index: u64) -> Key {
    key16(index)
}

/// Makes and checks values: the item's number, then bytes out of a pool; or JSON documents with the number as a member.
pub struct Values {
    pool: Vec<u8>,
    bytes: usize,
    json: bool,
}

impl Values {
    /// In each value `random_percent` is incompressible; the rest is zeros.
    pub fn new(bytes: usize, random_percent: u64) -> Values {
        let mut pool = vec![0; POOL_BYTES + bytes];
        let mut random = Random::new(1);
        for piece in pool.chunks_mut(PIECE_BYTES) {
            let length = piece.len() * random_percent.min(100) as usize / 100;
            random.fill(&mut piece[..length]);
        }
        Values { pool, bytes, json: false }
    }

    /// Documents of at least this length, or slightly more: `{"title":"the 7th","year":1997,"number":7,"rest":"xx"}`.
    pub fn of_json(bytes: usize) -> Values {
        Values { pool: Vec::new(), bytes, json: true }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes a value of an item. `random` makes one write differ from the next.
    pub fn fill(&self, index: u64, random: &mut Random, value: &mut Vec<u8>) {
        value.clear();
        if self.json {
            let year = 1990 + random.below(30);
            value.extend_from_slice(
                format!(r#"{{"title":"the {index}th","year":{year},"number":{index},"rest":""#).as_bytes(),
            );
            value.resize(value.len().max(self.bytes.saturating_sub(2)), b'x');
            value.extend_from_slice(br#""}"#);
            return;
        }
        let start = random.below(POOL_BYTES as u64) as usize;
        value.extend_from_slice(&self.pool[start..start + self.bytes]);
        let name = index.to_le_bytes();
        let named = name.len().min(self.bytes);
        value[..named].copy_from_slice(&name[..named]);
    }

    /// An error if `value` is not one of the item's.
    pub fn check(&self, index: u64, value: &[u8]) -> Result<(), Failure> {
        if self.json && number_of_json(value) == Some(index) {
            return Ok(());
        }
        let named = self.bytes.min(8);
        if !self.json && value.len() == self.bytes && value[..named] == index.to_le_bytes()[..named] {
            return Ok(());
        }
        Err(format!("item {index} was answered with {} bytes that are not its own", value.len()).into())
    }
}

/// The number of an item whose value is a document, found in the same way as by a query at the drive.
pub fn number_of_json(value: &[u8]) -> Option<u64> {
    static READER: LazyLock<(FieldReader, usize)> = LazyLock::new(|| {
        let format = Format::parse("value: number json $.number int").expect("it is a format");
        (FieldReader::new(&format), format.find("number").expect("it is the format's field"))
    });
    let (reader, field) = &*READER;
    match reader.read(*field, &[], value) {
        Ok(Some(RawField::Int(number))) => u64::try_from(number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_ycsb_has_them() {
        let population = Population::new(1000, Values::new(100, 100));
        let mut operations = Operations::new(&population, Mix::named("d").unwrap(), Distribution::Latest, 3);
        let inserts = (0..10_000).filter(|_| matches!(operations.draw(), Operation::Insert(_))).count();
        assert!((400..600).contains(&inserts), "{inserts}");
        assert_eq!(population.count(), 1000 + inserts as u64);
        let mut operations = Operations::new(&population, Mix::named("f").unwrap(), Distribution::Zipfian, 3);
        let changes = (0..10_000).filter(|_| matches!(operations.draw(), Operation::ReadModifyWrite(_))).count();
        assert!((4700..5300).contains(&changes), "{changes}");
        assert!(Mix::named("g").is_err());
    }

    #[test]
    fn distributions_stay_among_the_items_and_lean_where_they_should() {
        let population = Population::new(1000, Values::new(8, 0));
        let mut random = Random::new(5);
        let (mut newest, mut hot) = (0, 0);
        for _ in 0..10_000 {
            for distribution in [Distribution::Uniform, Distribution::Zipfian] {
                assert!(population.draw(distribution, &mut random) < 1000);
            }
            let latest = population.draw(Distribution::Latest, &mut random);
            assert!(latest < 1000);
            newest += u64::from(latest >= 990);
            hot += u64::from(population.draw(Distribution::named("hot-90").unwrap(), &mut random) < 10);
            assert!(population.draw(Distribution::Hot(100), &mut random) < 10);
            assert!((10..1000).contains(&population.draw(Distribution::Hot(0), &mut random)));
        }
        assert!((8800..9200).contains(&hot), "{hot} of 10,000");
        assert!(Distribution::named("hot-101").is_err());
        assert!(newest > 3000, "the newest hundredth was drawn {newest} times of 10,000");
    }

    #[test]
    fn a_document_is_known_by_its_number() {
        let (values, mut value) = (Values::of_json(100), Vec::new());
        values.fill(7, &mut Random::new(1), &mut value);
        assert_eq!((value.len(), number_of_json(&value)), (100, Some(7)));
        assert!(values.check(7, &value).is_ok() && values.check(8, &value).is_err() && values.check(7, b"{}").is_err());
    }

    #[test]
    fn a_value_is_known_as_its_items_and_no_others() {
        let values = Values::new(100, 50);
        let mut random = Random::new(1);
        let (mut value, mut again) = (Vec::new(), Vec::new());
        values.fill(7, &mut random, &mut value);
        values.fill(7, &mut random, &mut again);
        assert_ne!(value, again);
        assert!(values.check(7, &value).is_ok() && values.check(7, &again).is_ok());
        assert!(values.check(8, &value).is_err() && values.check(7, &value[1..]).is_err());
        let zeros = value.iter().filter(|byte| **byte == 0).count();
        assert!((35..70).contains(&zeros), "{zeros}");
    }
}
