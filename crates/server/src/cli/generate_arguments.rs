//! The command line of `tapetum generate`.

use clap::Subcommand;

use crate::tools::papers::PaperTable;

#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// A table of a database of papers, as lines that `load` reads
    Papers {
        /// Which table; each is a keyspace of its own, whose fields `scan --fields` knows by this name
        #[arg(long, value_enum)]
        table: PaperTable,
        /// How large: 1 is 3.8 million papers
        #[arg(long, value_name = "S", default_value_t = 0.001, value_parser = scale)]
        scale: f64,
        /// The same seed gives the same lines
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
    },
}

fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| "a scale is a number, such as 0.01".to_string())?;
    if scale > 0.0 && scale <= 100.0 { Ok(scale) } else { Err("a scale is above 0, and at most 100".into()) }
}
