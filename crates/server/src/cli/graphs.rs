//! `tapetum graph`: runs a graph query, and prints its result.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tapetum::query::{CompiledQuery, GroupOrder, QueryText, ResultColumn};
use tapetum::{GraphOptions, GraphReport, KeyspaceHandle, Options, QueryError};
use tapetum_kernels::graph::{Direction, Normalization, Sampling};
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::{Format, Scalar, ScalarType};

use super::commands::{Outcome, offline_options, read_store_with};
use super::queries::{kept_format, side};
use crate::cli::graph_arguments::{BetweennessArguments, GraphCommand};
use crate::cli::scan_arguments::OnError;
use crate::tools::measure::Measure;
use crate::tools::query_rows::{self, RowShape};
use crate::{os, output};

pub fn run(GraphCommand::Bc(arguments): &GraphCommand) -> Outcome {
    // Report errors before the store is opened, if the command line has the whole format.
    let format = arguments.fields.as_deref().map(query_rows::format).transpose()?;
    let compiled = format.map(|format| compile(&format, arguments)).transpose()?;
    // Block signals before the store's threads are made: those threads must not take them.
    let signals = os::termination_signals()?;
    let units = arguments.units.map(|units| vec![("betweenness".to_owned(), u16::from(units))]);
    let options = Options { compute_units: units.unwrap_or_default(), ..offline_options(&arguments.store) };
    read_store_with(&arguments.store, &options, |store| {
        let name = &arguments.edges.keyspace;
        let keyspace = store.keyspace(name)?;
        match compiled {
            Some(compiled) => betweenness(&keyspace, &compiled, arguments, signals.as_fd()),
            None => {
                let compiled = compile(&kept_format(&keyspace, name)?, arguments)?;
                betweenness(&keyspace, &compiled, arguments, signals.as_fd())
            }
        }
    })
}

fn compile(format: &Format, arguments: &BetweennessArguments) -> Result<CompiledQuery, String> {
    let text = QueryText {
        condition: arguments.edges.condition.as_deref(),
        select: &arguments.edges.columns(format)?,
        policy: if arguments.on_error == OnError::Fail { MisfitPolicy::Fail } else { MisfitPolicy::Skip },
        ..QueryText::default()
    };
    query_rows::compile(format, &text)
}

fn options(arguments: &BetweennessArguments) -> GraphOptions {
    GraphOptions {
        direction: if arguments.undirected { Direction::Undirected } else { Direction::Directed },
        normalization: if arguments.normalized { Normalization::Pairs } else { Normalization::None },
        sampling: match (arguments.exact, arguments.samples) {
            (true, _) => Sampling::Exact,
            (false, Some(samples)) => Sampling::Samples(samples),
            (false, None) => Sampling::Automatic,
        },
        seed: arguments.seed,
        top: arguments.top,
        memory_bytes: arguments.graph_memory,
        parts: arguments.units.unwrap_or(1),
    }
}

/// Computes until done, or until a signal such as that of Ctrl-C.
fn betweenness(
    keyspace: &KeyspaceHandle,
    edges: &CompiledQuery,
    arguments: &BetweennessArguments,
    signals: BorrowedFd<'_>,
) -> Outcome {
    let (measure, bar) = (Measure::begin(keyspace.store()), progress());
    let (side, mut signal) = (side(arguments.run), None);
    let report = keyspace.betweenness(&edges.query, &options(arguments), side, &mut |progress| {
        bar.set_length(progress.slices);
        bar.set_position(progress.slices_done);
        // If signals cannot be read, the graph is computed to its end.
        signal = signal.take().or_else(|| os::wait_for_signal_until(signals, Duration::ZERO).ok().flatten());
        signal.is_none()
    });
    bar.finish_and_clear();
    if let (Some(signal), Err(QueryError::Cancelled)) = (signal, &report) {
        return Err(format!("given up at {}; nothing was changed", os::signal_name(signal)).into());
    }
    let report = report.map_err(query_rows::in_words)?;
    let took = measure.told(keyspace.store());
    let node = edges.columns.first().map_or(ScalarType::Unsigned, |column| column.scalar_type);
    print(&report, node, arguments)?;
    let mut told = io::stderr();
    // An error of standard error is ignored: the result on standard output matters.
    let _ = writeln!(told, "{}", summary(&report));
    if arguments.explain {
        let _ = writeln!(told, "{}; {took}", query_rows::explanation(&report.query, arguments.units));
    }
    if let Some(misfits) = query_rows::misfits(&report.query) {
        let _ = writeln!(told, "{misfits}");
    }
    Ok(())
}

fn print(report: &GraphReport, node: ScalarType, arguments: &BetweennessArguments) -> Outcome {
    let column = |name: &str, place, scalar_type| ResultColumn { name: name.into(), place, scalar_type };
    let columns = [column("node", 0, node), column("betweenness", 1, ScalarType::Float)];
    let shape = RowShape { columns: &columns, order: GroupOrder::default(), format: arguments.format };
    query_rows::print(shape, &mut output::stdout(), |rows| {
        for (name, centrality) in &report.top {
            let name = if node == ScalarType::Int { Scalar::Int(*name as i64) } else { Scalar::Unsigned(*name) };
            rows.row(&[Some(name), Some(Scalar::Float(*centrality))]);
        }
        Ok(Some(()))
    })?;
    Ok(())
}

/// The size of the graph, and whether the figures are exact.
fn summary(GraphReport { summary, .. }: &GraphReport) -> String {
    let (nodes, edges, sources) = (summary.nodes, summary.edges, summary.sources);
    let how = match sources == nodes {
        true => "exact, from all nodes".to_owned(),
        false => format!("estimated, from {sources} nodes: --exact takes all"),
    };
    let nulls =
        if summary.nulls == 0 { String::new() } else { format!("; {} rows with a NULL are no edges", summary.nulls) };
    format!("{nodes} nodes, {edges} edges; {how}{nulls}")
}

/// A progress bar, shown only on a terminal.
fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    match ProgressStyle::with_template("{wide_bar} {percent}%, {eta} left") {
        Ok(style) => ProgressBar::new(1).with_style(style),
        Err(_) => ProgressBar::new(1),
    }
}
