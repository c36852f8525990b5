//! `tapetum graph`: runs a graph query, and prints its result.

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tapetum::Options;
use tapetum::query::ResultColumn;
use tapetum_kernels::scan::{Format, Scalar, ScalarType};
use tapetum_service::caller::{Caller, CallerLeft};
use tapetum_service::reply::{Graph, Reply};
use tapetum_service::request::{Betweenness, QueryWords, Request, Sources};
use tapetum_service::service::Access;

use super::commands::{Outcome, offline_options};
use super::reach::Reached;
use crate::cli::graph_arguments::{BetweennessArguments, GraphCommand};
use crate::cli::scan_arguments::OnError;
use crate::tools::query_rows::{self, RowsCaller};
use crate::{os, output};

pub fn run(GraphCommand::Bc(arguments): &GraphCommand) -> Outcome {
    // Report errors before a store is reached, if the command line has the whole format.
    let format = arguments.fields.as_deref().map(query_rows::format).transpose()?;
    if let Some(format) = &format {
        words(format, arguments)?.compile()?;
    }
    // Block signals before the store's threads are made: those threads must not take them.
    let signals = os::termination_signals()?;
    let units = arguments.units.map(|units| vec![("betweenness".to_owned(), u16::from(units))]);
    let options = Options { compute_units: units.unwrap_or_default(), ..offline_options(&arguments.store) };
    let mut reached = Reached::new(&arguments.store, &options, Access::Read)?.at(arguments.freeze.freeze);
    let format = match format {
        Some(format) => format,
        None => reached.kept_format(&arguments.edges.keyspace)?,
    };
    let words = words(&format, arguments)?;
    betweenness(&mut reached, words, arguments, signals.as_fd())
}

fn words(format: &Format, arguments: &BetweennessArguments) -> Result<QueryWords, String> {
    Ok(QueryWords {
        fields: format.to_string(),
        condition: arguments.edges.condition.clone(),
        select: arguments.edges.columns(format)?,
        skips_misfits: arguments.on_error == OnError::Skip,
        ..QueryWords::default()
    })
}

/// Waits for a graph, until a signal such as that of Ctrl-C.
struct GraphCaller<'a> {
    bar: ProgressBar,
    signals: BorrowedFd<'a>,
    signal: Option<i32>,
    graph: Option<Graph>,
}

impl Caller for GraphCaller<'_> {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        match reply {
            Reply::Progress { done, of } => {
                self.bar.set_length(of);
                self.bar.set_position(done);
            }
            Reply::Graph(graph) => self.graph = Some(graph),
            _ => {}
        }
        Ok(())
    }

    fn row(&mut self, _values: &[Option<Scalar<'_>>]) {}

    fn has_left(&mut self) -> bool {
        // If signals cannot be read, the graph is computed to its end.
        let signalled = || os::wait_for_signal_until(self.signals, Duration::ZERO).ok().flatten();
        self.signal = self.signal.or_else(signalled);
        self.signal.is_some()
    }
}

fn betweenness(
    reached: &mut Reached,
    words: QueryWords,
    arguments: &BetweennessArguments,
    signals: BorrowedFd<'_>,
) -> Outcome {
    let request = Request::Betweenness(Betweenness {
        keyspace: arguments.edges.keyspace.clone(),
        freeze: arguments.freeze.freeze,
        words,
        side: arguments.run.into(),
        application: arguments.application.clone(),
        is_undirected: arguments.undirected,
        is_normalized: arguments.normalized,
        sources: match (arguments.exact, arguments.samples) {
            (true, _) => Sources::Exact,
            (false, Some(samples)) => Sources::Samples(samples),
            (false, None) => Sources::Automatic,
        },
        seed: arguments.seed,
        top: arguments.top,
        memory_bytes: arguments.graph_memory,
        parts: arguments.units.unwrap_or(1),
    });
    let mut caller = GraphCaller { bar: progress(), signals, signal: None, graph: None };
    let asked = reached.ask(request, &mut caller);
    caller.bar.finish_and_clear();
    if let (Some(signal), Err(_)) = (caller.signal, &asked) {
        return Err(format!("given up at {}; nothing was changed", os::signal_name(signal)).into());
    }
    asked?;
    let Some(graph) = caller.graph else { return Err("the graph was not answered".into()) };
    print(&graph, arguments)?;
    let mut told = io::stderr();
    // An error of standard error is ignored: the result on standard output matters.
    let _ = writeln!(told, "{}", summary(&graph));
    if arguments.explain {
        let (explained, took) = (query_rows::explanation(&graph.queried), query_rows::costs(&graph.queried.costs));
        let _ = writeln!(told, "{explained}; {took}");
    }
    if let Some(misfits) = query_rows::misfits(&graph.queried) {
        let _ = writeln!(told, "{misfits}");
    }
    Ok(())
}

fn print(graph: &Graph, arguments: &BetweennessArguments) -> Result<(), Box<dyn Error>> {
    let column = |name: &str, place, scalar_type| ResultColumn { name: name.into(), place, scalar_type };
    let columns = vec![column("node", 0, graph.node_type), column("betweenness", 1, ScalarType::Float)];
    let mut out = output::stdout();
    let mut rows = RowsCaller::new(arguments.format, &mut out);
    rows.begin(columns)?;
    for (name, centrality) in &graph.top {
        let is_signed = graph.node_type == ScalarType::Int;
        let name = if is_signed { Scalar::Int(*name as i64) } else { Scalar::Unsigned(*name) };
        rows.row(&[Some(name), Some(Scalar::Float(*centrality))]);
    }
    rows.queried = Some(graph.queried.clone());
    rows.finish(Ok(())).map(|_| ())
}

/// The size of the graph, and whether the figures are exact.
fn summary(graph: &Graph) -> String {
    let (nodes, edges, sources) = (graph.nodes, graph.edges, graph.sources);
    let how = match sources == nodes {
        true => "exact, from all nodes".to_owned(),
        false => format!("estimated, from {sources} nodes: --exact takes all"),
    };
    let nulls =
        if graph.nulls == 0 { String::new() } else { format!("; {} rows with a NULL are no edges", graph.nulls) };
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
