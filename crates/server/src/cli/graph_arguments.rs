//! The command line of `tapetum graph`.

use clap::{Args, Subcommand};

use crate::cli::arguments::StoreArguments;
use crate::cli::freeze_arguments::FreezeArguments;
use crate::cli::ranges::memory;
use crate::cli::scan_arguments::{OnError, RunSide};
use crate::tools::graph_text::EdgesText;
use crate::tools::query_rows::RowFormat;

#[derive(Debug, Subcommand)]
pub enum GraphCommand {
    /// Betweenness centrality: the nodes through which most of the shortest paths between others lead
    #[command(after_help = BC_HELP)]
    Bc(BetweennessArguments),
}

#[derive(Debug, Args)]
pub struct BetweennessArguments {
    /// The edges: "FROM, TO from KEYSPACE where CONDITION"; without columns, the key's first two fields
    #[arg(long, value_name = "EDGES", value_parser = EdgesText::parse)]
    pub edges: EdgesText,
    /// Take all nodes as sources, however many edges there are
    #[arg(long, conflicts_with = "samples")]
    pub exact: bool,
    /// Take so many nodes as sources, and estimate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1 << 31))]
    pub samples: Option<u32>,
    /// The same seed takes the same nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Show so many nodes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub top: u32,
    /// Edges lead both ways
    #[arg(long)]
    pub undirected: bool,
    /// Divide by the number of pairs of other nodes: 0 to 1
    #[arg(long)]
    pub normalized: bool,
    /// The format of the records, as `scan` takes it [default: the one that `keyspace format` keeps]
    #[arg(long, value_name = "FORMAT")]
    pub fields: Option<String>,
    /// The side that runs it
    #[arg(long, value_enum, default_value = "drive")]
    pub run: RunSide,
    /// Threads of the drive that share the work
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub units: Option<u8>,
    /// Count the work as that of an application of the running server, and give it that one's share of the drive: see `serve --weight`
    #[arg(long, value_name = "NAME")]
    pub application: Option<String>,
    /// Memory for the graph, beside the store's
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = memory)]
    pub graph_memory: u64,
    /// How a record is handled that does not fit the fields
    #[arg(long, value_enum, default_value = "fail")]
    pub on_error: OnError,
    /// How to print the nodes
    #[arg(long, value_enum, default_value = "table")]
    pub format: RowFormat,
    /// Tell on standard error how much was read, sent and returned
    #[arg(long)]
    pub explain: bool,
    #[command(flatten)]
    pub freeze: FreezeArguments,
    #[command(flatten)]
    pub store: StoreArguments,
}

const BC_HELP: &str = "\
Graphs of up to 50,000 edges are computed exactly, of larger ones 1,000 nodes are sources and the rest is estimated, unless --exact or
--samples says otherwise; standard error says which. The edges stay at the drive: it scans, computes and gives the first nodes.";

#[cfg(test)]
mod tests {
    use crate::cli::arguments::Cli;
    use clap::Parser;

    #[test]
    fn edges_are_said_in_one_text() {
        let parse = |edges: &str, more: &[&str]| {
            Cli::try_parse_from([&["tapetum", "graph", "bc", "--edges", edges], more].concat())
        };
        assert!(parse("from refs", &["--samples", "10", "--undirected"]).is_ok());
        assert!(parse("a, b from refs where year > 2000", &["--exact", "--units", "2"]).is_ok());
        assert!(parse("a, b", &[]).unwrap_err().to_string().contains("from KEYSPACE"));
        assert!(parse("from refs", &["--samples", "10", "--exact"]).is_err());
        assert!(parse("from refs", &["--units", "0"]).is_err());
    }
}
