//! `generate papers`: nKV's database of papers, generated from a seed: papers, venues, authors, citations, authorships.
//!
//! At scale 1 it has 3.8 million papers, 18 thousand venues, 4.2 million authors, about 40 million references and about 48 million pairs of
//! paper and author. Every scale has the same shape: papers are numbered by year, more of them each year; a few venues have most papers;
//! papers cite earlier ones, mostly recent, now and then a classic.
//!
//! Each line depends only on the seed, the table and its own numbers, so nothing is stored. Tables are printed as lines that `load` reads.

use std::error::Error;

use tapetum_drive::SplitMix64;

use super::packages::PackageTable;

/// Takes an item. An error ends the walk.
pub type ShowItem<'a> = &'a mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), Box<dyn Error>>;

/// A table, and a keyspace for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PaperTable {
    Papers,
    Venues,
    Authors,
    /// Which paper cites which
    References,
    /// The authors of papers
    Authorships,
}

impl PaperTable {
    pub const ALL: [PaperTable; 5] =
        [PaperTable::Papers, PaperTable::Venues, PaperTable::Authors, PaperTable::References, PaperTable::Authorships];

    pub fn name(self) -> &'static str {
        match self {
            PaperTable::Papers => "papers",
            PaperTable::Venues => "venues",
            PaperTable::Authors => "authors",
            PaperTable::References => "references",
            PaperTable::Authorships => "authorships",
        }
    }

    /// The format of its keys and values.
    pub fn format_text(self) -> &'static str {
        match self {
            PaperTable::Papers => "key: id u32be; value: year u16le, venue string8, title string",
            PaperTable::Venues => "key: id u32be; value: name string",
            PaperTable::Authors => "key: id u32be; value: name string",
            PaperTable::References => "key: citing u32be, cited u32be; value: year u16le, venue string8",
            PaperTable::Authorships => "key: paper u32be, author u32be; value: place u16le",
        }
    }
}

pub fn format_text(name: &str) -> Option<&'static str> {
    let of_papers = PaperTable::ALL.into_iter().find(|table| table.name() == name).map(PaperTable::format_text);
    let of_packages = PackageTable::ALL.into_iter().find(|table| table.name() == name).map(PackageTable::format_text);
    of_papers.or(of_packages)
}

const FIRST_YEAR: u16 = 1960;
const YEARS: f64 = 61.0;
/// Exponent of the growth in papers per year.
const GROWTH: f64 = 2.2;
const REFERENCES_MEAN: f64 = 40.0 / 3.8;
const AUTHORS_MEAN: f64 = 48.0 / 3.8;
const VENUES: [&str; 12] =
    ["VLDB", "SIGMOD", "ICDE", "EDBT", "CIDR", "FAST", "OSDI", "SOSP", "PODS", "DaMoN", "HotStorage", "SIGIR"];
const FIELDS: [&str; 8] =
    ["Data Engineering", "Storage", "Query Processing", "Graphs", "Networks", "Systems", "Hardware", "Learning"];
const WORDS: [&str; 40] = [
    "adaptive",
    "analysis",
    "approximate",
    "buffers",
    "caching",
    "columns",
    "compression",
    "computational",
    "concurrent",
    "consistent",
    "data",
    "databases",
    "distributed",
    "durable",
    "efficient",
    "evaluation",
    "fast",
    "flash",
    "graphs",
    "hashing",
    "indexes",
    "in-situ",
    "joins",
    "key-value",
    "learned",
    "logs",
    "memory",
    "near-data",
    "optimal",
    "parallel",
    "persistent",
    "processing",
    "queries",
    "recovery",
    "scalable",
    "scans",
    "storage",
    "stores",
    "streams",
    "transactions",
];
const NAMES: [&str; 24] = [
    "Ada", "Bela", "Chen", "Dana", "Emil", "Fatma", "Goran", "Hana", "Ilia", "Jana", "Kofi", "Lena", "Marek", "Nadia",
    "Omar", "Petra", "Quinn", "Rosa", "Sven", "Tomas", "Uma", "Vera", "Wei", "Yara",
];

/// The database of a scale and a seed.
#[derive(Clone, Copy, Debug)]
pub struct PaperDatabase {
    papers: u32,
    venues: u32,
    authors: u32,
    seed: u64,
}

impl PaperDatabase {
    pub fn new(scale: f64, seed: u64) -> PaperDatabase {
        let scaled = |at_one: f64| (at_one * scale).round().clamp(1.0, f64::from(u32::MAX)) as u32;
        PaperDatabase { papers: scaled(3.8e6), venues: scaled(18e3), authors: scaled(4.2e6), seed }
    }

    /// The random numbers of one line of a table.
    fn random(&self, table: PaperTable, number: u32) -> SplitMix64 {
        let mut mixed = SplitMix64::new(self.seed ^ (table as u64 + 1) << 56);
        SplitMix64::new(mixed.next_u64() ^ u64::from(number))
    }

    fn year(&self, paper: u32) -> u16 {
        let place = (f64::from(paper) + 0.5) / f64::from(self.papers);
        FIRST_YEAR + (YEARS * place.powf(1.0 / GROWTH)) as u16
    }

    /// A few venues have most of the papers.
    fn venue(&self, paper: u32) -> u32 {
        let mut random = self.random(PaperTable::Venues, paper);
        below(self.venues, random.unit().powi(4))
    }

    /// Gives the items of a table to `show`, in the order of their keys.
    pub fn each(&self, table: PaperTable, show: ShowItem<'_>) -> Result<(), Box<dyn Error>> {
        let numbers = match table {
            PaperTable::Venues => self.venues,
            PaperTable::Authors => self.authors,
            PaperTable::Papers | PaperTable::References | PaperTable::Authorships => self.papers,
        };
        let mut shown = Ok(());
        for number in 0..numbers {
            self.each_item(table, number, |key, value| {
                if shown.is_ok() {
                    shown = show(key, value);
                }
            });
            if shown.is_err() {
                break;
            }
        }
        shown
    }

    fn each_item(&self, table: PaperTable, number: u32, mut show: impl FnMut(Vec<u8>, Vec<u8>)) {
        let mut random = self.random(table, number);
        let key = number.to_be_bytes();
        match table {
            PaperTable::Papers => {
                let mut value = self.year(number).to_le_bytes().to_vec();
                push_short(&mut value, &venue_name(self.venue(number)));
                value.extend_from_slice(title(&mut random).as_bytes());
                show(key.to_vec(), value);
            }
            PaperTable::Venues => show(key.to_vec(), venue_name(number).into_bytes()),
            PaperTable::Authors => show(key.to_vec(), author_name(number).into_bytes()),
            PaperTable::References if number == 0 => {}
            PaperTable::References => {
                let mut value = self.year(number).to_le_bytes().to_vec();
                push_short(&mut value, &venue_name(self.venue(number)));
                for _ in 0..count(&mut random, REFERENCES_MEAN) {
                    let is_classic = random.one_in(4);
                    let back = below(number, random.unit().powi(3));
                    let cited = if is_classic { back } else { number - 1 - back };
                    show([key, cited.to_be_bytes()].concat(), value.clone());
                }
            }
            PaperTable::Authorships => {
                for place in 0..count(&mut random, AUTHORS_MEAN).max(1) {
                    // Some authors write more than others.
                    let author = below(self.authors, random.unit().powf(1.5));
                    show([key, author.to_be_bytes()].concat(), (place as u16).to_le_bytes().to_vec());
                }
            }
        }
    }
}

fn below(end: u32, place: f64) -> u32 {
    ((f64::from(end) * place) as u32).min(end - 1)
}

/// Usually few, rarely many.
fn count(random: &mut SplitMix64, mean: f64) -> u32 {
    (-mean * (1.0 - random.unit()).ln()).round().min(1000.0) as u32
}

fn push_short(value: &mut Vec<u8>, text: &str) {
    value.push(text.len() as u8);
    value.extend_from_slice(text.as_bytes());
}

fn venue_name(venue: u32) -> String {
    match VENUES.get(venue as usize) {
        Some(name) => (*name).into(),
        None => format!("Workshop on {} {venue}", FIELDS[venue as usize % FIELDS.len()]),
    }
}

fn author_name(author: u32) -> String {
    let names = NAMES.len() as u32;
    format!("{} {}son {author}", NAMES[(author % names) as usize], NAMES[(author / names % names) as usize])
}

fn title(random: &mut SplitMix64) -> String {
    let words = 4 + random.below(7);
    let mut title = String::new();
    for _ in 0..words {
        let word = WORDS[random.below(WORDS.len() as u64) as usize];
        if title.is_empty() {
            title.push_str(&word[..1].to_ascii_uppercase());
            title.push_str(&word[1..]);
        } else {
            title.push(' ');
            title.push_str(word);
        }
    }
    title
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_kernels::scan::{FieldReader, Format as ScanFormat};

    #[derive(PartialEq, Debug)]
    struct Item {
        key: Vec<u8>,
        value: Vec<u8>,
    }

    fn items(table: PaperTable, scale: f64, seed: u64) -> Vec<Item> {
        let mut items = Vec::new();
        let shown = PaperDatabase::new(scale, seed).each(table, &mut |key, value| {
            items.push(Item { key, value });
            Ok(())
        });
        shown.unwrap();
        items
    }

    #[test]
    fn tables_have_their_shape_and_their_format() {
        for (table, at_one) in PaperTable::ALL.into_iter().zip([3.8e6, 18e3, 4.2e6, 40e6, 48e6]) {
            let fields = FieldReader::new(&ScanFormat::parse(table.format_text()).unwrap());
            let items = items(table, 0.001, 1);
            let ratio = items.len() as f64 / (at_one * 0.001);
            assert!((0.9..1.1).contains(&ratio), "{table:?}: {} lines", items.len());
            assert!(items.iter().all(|item| fields.check(&item.key, &item.value) == Ok(())), "{table:?}");
        }
        assert_eq!(format_text("papers"), Some(PaperTable::Papers.format_text()));
        assert_eq!(format_text("key: a u8"), None);
    }

    #[test]
    fn papers_cite_earlier_ones_and_become_more() {
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        assert!(
            items(PaperTable::References, 0.001, 1).iter().all(|item| number(&item.key[4..]) < number(&item.key[..4]))
        );
        let years: Vec<u16> = items(PaperTable::Papers, 0.001, 1)
            .iter()
            .map(|item| u16::from_le_bytes([item.value[0], item.value[1]]))
            .collect();
        assert!(years.is_sorted() && years[0] < 1970 && *years.last().unwrap() == 2020);
        let of = |year: u16| years.iter().filter(|one| **one == year).count();
        assert!(of(2015) > 2 * of(1980) && of(1980) > 0);
        let vldb =
            items(PaperTable::Papers, 0.001, 1).iter().filter(|item| item.value[2..].starts_with(b"\x04VLDB")).count();
        assert!(vldb > 50, "{vldb} papers");
    }

    #[test]
    fn a_seed_gives_the_same_lines() {
        for table in PaperTable::ALL {
            assert_eq!(items(table, 0.0002, 5), items(table, 0.0002, 5));
        }
        assert_ne!(items(PaperTable::Papers, 0.0002, 5), items(PaperTable::Papers, 0.0002, 6));
    }
}
