//! The command line of `tapetum scan`.

use clap::Args;
use tapetum::{KeyBound, KeyRange};

use crate::cli::arguments::StoreArguments;
use crate::cli::freeze_arguments::FreezeArguments;
use crate::cli::keyspace_arguments::{DEFAULT_NAME, keyspace_name};
use crate::tools::item_lines::Format;
use crate::tools::key_text::KeyText;
use crate::tools::query_rows::RowFormat;
use tapetum_service::key_range::successor;

#[derive(Debug, Args)]
pub struct ScanArguments {
    /// The keyspace; for items in the order of their keys, one that was created with --index ordered
    #[arg(value_name = "KEYSPACE", value_parser = keyspace_name(), required_unless_present = "of_keyspace")]
    name: Option<String>,
    /// The same, as other commands take it
    #[arg(id = "of_keyspace", long = "keyspace", value_name = "NAME", value_parser = keyspace_name(), conflicts_with = "name")]
    of_keyspace: Option<String>,
    /// The first key, if it is there; keys are written as for `get`, and the first of their fields are enough
    #[arg(long, value_name = "KEY")]
    pub from: Option<String>,
    /// The key to end before
    #[arg(long, value_name = "KEY")]
    pub to: Option<String>,
    /// Only keys that begin so: with these fields, or these bytes as `list` prints them
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Print so many items, or rows, at most
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// From the last key to the first
    #[arg(long, conflicts_with_all = QUERY_OPTIONS)]
    pub reverse: bool,
    /// Print how many items there are, rather than the items
    #[arg(long, conflicts_with_all = QUERY_OPTIONS)]
    pub count: bool,
    /// The format of the output: tsv (the default) or jsonl of items, which `load` reads; table (the default), csv, jsonl or arrow (a
    /// stream of IPC) of a query's rows
    #[arg(long, value_enum, conflicts_with = "count")]
    pub format: Option<ScanFormat>,
    #[command(flatten)]
    pub query: QueryArguments,
    #[command(flatten)]
    pub freeze: FreezeArguments,
    #[command(flatten)]
    pub store: StoreArguments,
}

/// Options each of which makes a scan a query.
const QUERY_OPTIONS: [&str; 8] =
    ["fields", "condition", "select", "group_by", "having", "order_by", "units", "explain"];

/// A query over the fields of the records; it runs at the drive.
#[derive(Debug, Args)]
#[command(next_help_heading = "Queries")]
pub struct QueryArguments {
    /// The format of keys and values, such as 'key: id u64be; value: year u16le, title string'; or papers, venues, authors, references,
    /// authorships, as `generate papers` writes them [default: the one that `keyspace format` keeps]
    #[arg(long, value_name = "FORMAT")]
    pub fields: Option<String>,
    /// Which records: "year = 2000 and title like '%join%'"
    #[arg(long = "where", value_name = "CONDITION")]
    pub condition: Option<String>,
    /// The columns to show: "title, year + 1 as next", "distinct venue", or "count(*), avg(year)" [default: all fields]
    #[arg(long, value_name = "COLUMNS")]
    pub select: Option<String>,
    /// One row for all records with the same of these: expressions, or a column's name or place
    #[arg(long, value_name = "COLUMNS")]
    pub group_by: Option<String>,
    /// Which groups: "count(*) > 1 and year < 2000"
    #[arg(long, value_name = "CONDITION")]
    pub having: Option<String>,
    /// By what to order: an expression, a column's name or its place, from 1 on; with desc from the greatest to the least; rows need a --limit
    #[arg(long, value_name = "COLUMN")]
    pub order_by: Option<String>,
    /// The side that runs it
    #[arg(long, value_enum, default_value = "drive")]
    pub run: RunSide,
    /// How rows come from the drive
    #[arg(long, value_enum, default_value = "bulk")]
    pub transfer: Transfer,
    /// Threads of the drive that look at records; none: the command's own thread does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub units: Option<u8>,
    /// Count the work as that of an application of the running server, and give it that one's share of the drive: see `serve --weight`
    #[arg(long, value_name = "NAME")]
    pub application: Option<String>,
    /// How a record is handled that does not fit the fields
    #[arg(long, value_enum, default_value = "fail")]
    pub on_error: OnError,
    /// Tell on standard error how much was read, sent and returned
    #[arg(long)]
    pub explain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ScanFormat {
    Tsv,
    Jsonl,
    Table,
    Csv,
    Arrow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RunSide {
    /// Beside the records: only the result crosses
    Drive,
    /// All records cross
    Host,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transfer {
    /// All that are ready at once
    Bulk,
    /// Each by itself, with a wake-up of its own, to compare
    Records,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnError {
    /// End, and name it
    Fail,
    /// Leave it out, and say how many there were
    Skip,
}

impl QueryArguments {
    fn are_given(&self) -> bool {
        let QueryArguments { fields, condition, select, group_by, having, order_by, units, explain, .. } = self;
        let texts = [fields, condition, select, group_by, having, order_by];
        *explain || units.is_some() || texts.into_iter().any(Option::is_some)
    }
}

impl ScanArguments {
    pub fn keyspace(&self) -> &str {
        // clap makes sure that exactly one of them is given.
        self.name.as_deref().or(self.of_keyspace.as_deref()).unwrap_or(DEFAULT_NAME)
    }

    /// Whether fields are asked for, rather than items.
    pub fn is_query(&self) -> bool {
        self.query.are_given()
    }

    /// Whether an option is given that only items have.
    pub fn is_of_items(&self) -> bool {
        self.from.is_some() || self.to.is_some() || !self.prefix.is_empty() || self.reverse || self.count
    }

    /// The output format of items.
    ///
    /// # Errors
    /// When the format is one of a query's rows.
    pub fn item_format(&self) -> Result<Format, String> {
        match self.format {
            None | Some(ScanFormat::Tsv) => Ok(Format::Tsv),
            Some(ScanFormat::Jsonl) => Ok(Format::Jsonl),
            Some(_) => Err("--format table, csv and arrow are of queries: say what to --select".into()),
        }
    }

    /// The columns of the rows.
    ///
    /// # Errors
    /// If the rows are groups, and no columns are given.
    pub fn select(&self) -> Result<&str, String> {
        let QueryArguments { select, group_by, having, .. } = &self.query;
        match (select, group_by, having) {
            (Some(select), ..) => Ok(select),
            (None, None, None) => Ok("*"),
            (None, Some(columns), _) => Err(format!(
                "--group-by makes one row of many: say what it shows with --select, such as --select \"{columns}, count(*)\""
            )),
            (None, None, Some(_)) => {
                Err("--having chooses among groups: say what a group is with --group-by, and what its row shows with \
                                          --select; to choose among records, write --where"
                    .into())
            }
        }
    }

    /// The output format of a query's rows.
    ///
    /// # Errors
    /// When the format is one of items.
    pub fn row_format(&self) -> Result<RowFormat, String> {
        match self.format {
            None | Some(ScanFormat::Table) => Ok(RowFormat::Table),
            Some(ScanFormat::Csv) => Ok(RowFormat::Csv),
            Some(ScanFormat::Jsonl) => Ok(RowFormat::Jsonl),
            Some(ScanFormat::Arrow) => Ok(RowFormat::Arrow),
            Some(ScanFormat::Tsv) => {
                Err("a query's rows are printed as table, csv, jsonl or arrow: tsv is of items".into())
            }
        }
    }

    /// The range of keys that the options ask for.
    ///
    /// # Errors
    /// If no key can be in the range, or a bound is not a key of this keyspace.
    pub fn range(&self, keys: &KeyText) -> Result<KeyRange, String> {
        let (from, to) = keys.range(self.from.as_deref(), self.to.as_deref())?;
        if to.as_ref().is_some_and(|to| from >= *to) {
            let [from, to] = [&self.from, &self.to].map(|text| text.as_deref().unwrap_or_default());
            return Err(format!(
                "no key is from \"{from}\" on and before \"{to}\": give the smaller key to --from; --reverse prints a range from its end"
            ));
        }
        let prefix = keys.prefix(&self.prefix).map_err(|why| format!("--prefix: {why}"))?;
        let end = match (to, successor(&prefix)) {
            (Some(to), Some(end)) => Some(to.min(end)),
            (to, end) => to.or(end),
        };
        let from = from.max(prefix);
        if end.as_ref().is_some_and(|end| from >= *end) {
            return Err(format!("no key that begins with \"{}\" is between --from and --to", self.prefix));
        }
        let from = if from.is_empty() { KeyBound::Unbounded } else { KeyBound::Included(from) };
        Ok(KeyRange { from, to: end.map_or(KeyBound::Unbounded, KeyBound::Excluded), is_reverse: self.reverse })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::{Cli, Command};
    use clap::Parser;

    fn range(line: &str) -> Result<KeyRange, String> {
        let words = format!("tapetum scan orders {line}");
        match Cli::try_parse_from(words.split_whitespace()).unwrap().command {
            Command::Scan(arguments) => arguments.range(&KeyText::of_bytes()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_query_is_of_a_range_too_and_goes_no_way_round() {
        let queried = range("--from b --prefix ba --where year=2000").unwrap();
        assert_eq!((queried.from, queried.to), (KeyBound::Included(b"ba".into()), KeyBound::Excluded(b"bb".into())));
        let words = "tapetum scan orders --where year=2000 --reverse";
        assert!(Cli::try_parse_from(words.split_whitespace()).is_err());
    }

    #[test]
    fn groups_are_asked_what_they_show() {
        let select = |words: &[&str]| match Cli::try_parse_from([&["tapetum", "scan", "orders"], words].concat()) {
            Ok(Cli { command: Command::Scan(arguments), .. }) => arguments.select().map(str::to_owned),
            other => panic!("{other:?}"),
        };
        assert_eq!(select(&["--where", "year=2000"]), Ok("*".into()));
        assert_eq!(select(&["--group-by", "year", "--select", "year"]), Ok("year".into()));
        let grouped = select(&["--group-by", "year", "--having", "year>1"]).unwrap_err();
        assert!(grouped.contains("--select \"year, count(*)\""), "{grouped}");
        let chosen = select(&["--having", "year>1"]).unwrap_err();
        assert!(chosen.contains("--group-by") && chosen.contains("--where"), "{chosen}");
    }

    #[test]
    fn bounds_and_prefix_meet_in_one_range() {
        let included = |key: &str| KeyBound::Included(key.into());
        let excluded = |key: &str| KeyBound::Excluded(key.into());
        for (line, from, to) in [
            ("", KeyBound::Unbounded, KeyBound::Unbounded),
            ("--from b", included("b"), KeyBound::Unbounded),
            ("--to b", KeyBound::Unbounded, excluded("b")),
            ("--from b --to c", included("b"), excluded("c")),
            ("--prefix ab", included("ab"), excluded("ac")),
            ("--prefix ab --from abc --to b", included("abc"), excluded("ac")),
            ("--prefix ab --from a --to abx", included("ab"), excluded("abx")),
        ] {
            assert_eq!(range(line), Ok(KeyRange { from, to, is_reverse: false }), "{line}");
        }
        assert!(range("--reverse").unwrap().is_reverse);
        for line in ["--from c --to b", "--from b --to b", "--prefix a --from b", "--prefix b --to b"] {
            assert!(range(line).is_err(), "{line}");
        }
    }
}
