//! Queries, fields of one record, and graphs.

use std::cell::RefCell;

use tapetum::query::{CompiledQuery, GroupOrder, OrderedRows, QueryText, compile};
use tapetum::{GraphOptions, KeyRange, QueryReport, QuerySide};
use tapetum_kernels::graph::{Direction, Normalization, Sampling};
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::{Format, Scalar, ScalarType};

use super::OpenStore;
use super::costs::CostsBegun;
use super::read_keyspace::{KeyspaceToRead, failure_of_query};
use crate::caller::{Caller, CallerLeft};
use crate::failure::Failure;
use crate::reply::{Column, Costs, Graph, Misfits, Queried, Reply};
use crate::request::{Betweenness, GetFields, Query, QueryWords, Side, Sources};

impl QueryWords {
    /// # Errors
    /// Names the wrong word.
    pub fn compile(&self) -> Result<CompiledQuery, Failure> {
        let format = Format::parse(&self.fields).map_err(|error| Failure::bad(format!("the fields: {error}")))?;
        let text = QueryText {
            condition: self.condition.as_deref(),
            select: &self.select,
            group_by: self.group_by.as_deref(),
            having: self.having.as_deref(),
            order_by: self.order_by.as_deref(),
            limit: self.limit,
            policy: if self.skips_misfits { MisfitPolicy::Skip } else { MisfitPolicy::Fail },
        };
        compile(&format, &text).map_err(|error| Failure::bad(error.to_string()))
    }
}

impl From<Side> for QuerySide {
    fn from(side: Side) -> QuerySide {
        match side {
            Side::Drive => QuerySide::Drive,
            Side::DriveByRecord => QuerySide::DriveByRecord,
            Side::Host => QuerySide::Host,
        }
    }
}

pub fn query(open: OpenStore<'_>, asked: Query, caller: &mut dyn Caller) -> Result<(), Failure> {
    let Query { keyspace, freeze, words, range, side, application } = asked;
    let (compiled, keyspace) = (words.compile()?, KeyspaceToRead::find(open, &keyspace, freeze)?);
    let keyspace = keyspace.for_application(application.as_deref())?;
    let range = KeyRange::from(range);
    let costs = CostsBegun::now(open.store);
    tell_columns(&compiled, caller)?;
    // It takes rows, and is asked between them whether it waits for more.
    let caller = RefCell::new(caller);
    let mut ordered = OrderedRows::new(compiled.group_order.clone());
    let mut show = |row: &[Option<Scalar<'_>>]| caller.borrow_mut().row(row);
    let mut take = |values: &[Option<Scalar<'_>>]| ordered.push(values, &mut show);
    let mut go_on = || !caller.borrow_mut().has_left();
    let report = keyspace.query_while(&compiled.query, side.into(), &range, &mut take, &mut go_on)?;
    // Groups are chosen and put in order here, because they are few.
    ordered.finish(&mut show);
    let queried = told(&report, &compiled.group_order, open.units_of("scan"), costs.until_now(open.store));
    Ok(caller.into_inner().take(Reply::Queried(queried))?)
}

pub fn get_fields(open: OpenStore<'_>, asked: &GetFields, caller: &mut dyn Caller) -> Result<(), Failure> {
    let keyspace = open.keyspace_for(&asked.keyspace, asked.application.as_deref())?;
    let compiled = asked.words.compile()?;
    let costs = CostsBegun::now(open.store);
    tell_columns(&compiled, caller)?;
    let mut take = |values: &[Option<Scalar<'_>>]| caller.row(values);
    let report = keyspace.get_fields(&asked.key, &compiled.query, asked.side.into(), &mut take);
    match report.map_err(|error| failure_of_query(open, error))? {
        None => Ok(()),
        Some(report) => {
            let units = open.units_of("fields");
            let queried = told(&report, &compiled.group_order, units, costs.until_now(open.store));
            Ok(caller.take(Reply::Queried(queried))?)
        }
    }
}

pub fn betweenness(open: OpenStore<'_>, asked: &Betweenness, caller: &mut dyn Caller) -> Result<(), Failure> {
    let keyspace = KeyspaceToRead::find(open, &asked.keyspace, asked.freeze)?;
    let keyspace = keyspace.for_application(asked.application.as_deref())?;
    let edges = asked.words.compile()?;
    let options = GraphOptions {
        direction: if asked.is_undirected { Direction::Undirected } else { Direction::Directed },
        normalization: if asked.is_normalized { Normalization::Pairs } else { Normalization::None },
        sampling: match asked.sources {
            Sources::Automatic => Sampling::Automatic,
            Sources::Exact => Sampling::Exact,
            Sources::Samples(samples) => Sampling::Samples(samples),
        },
        seed: asked.seed,
        top: asked.top,
        memory_bytes: asked.memory_bytes,
        parts: asked.parts,
    };
    let costs = CostsBegun::now(open.store);
    let report = keyspace.betweenness(&edges.query, &options, asked.side.into(), &mut |progress| {
        let progress = Reply::Progress { done: progress.slices_done, of: progress.slices };
        caller.take(progress).is_ok() && !caller.has_left()
    })?;
    let units = open.units_of("betweenness");
    let queried = told(&report.query, &edges.group_order, units, costs.until_now(open.store));
    let summary = report.summary;
    let graph = Graph {
        node_type: edges.columns.first().map_or(ScalarType::Unsigned, |column| column.scalar_type),
        nodes: summary.nodes,
        edges: summary.edges,
        sources: summary.sources,
        nulls: summary.nulls,
        top: report.top,
        queried,
    };
    Ok(caller.take(Reply::Graph(graph))?)
}

fn tell_columns(compiled: &CompiledQuery, caller: &mut dyn Caller) -> Result<(), CallerLeft> {
    let columns = compiled.columns.iter().map(|column| Column {
        name: column.name.clone(),
        place: column.place,
        scalar_type: column.scalar_type,
    });
    caller.take(Reply::Columns(columns.collect()))
}

fn told(report: &QueryReport, order: &GroupOrder, units: Option<u16>, costs: Costs) -> Queried {
    let counts = &report.counts;
    Queried {
        is_on_host: report.side == QuerySide::Host,
        is_row_by_row: report.side == QuerySide::DriveByRecord,
        units,
        records: counts.records,
        kept: counts.kept,
        misfits: counts.first_misfit.as_ref().map(|first| Misfits {
            count: counts.misfits,
            first_key: first.key.to_vec(),
            first_why: first.misfit.explain().to_string(),
        }),
        commands: report.commands,
        wake_ups: report.wake_ups,
        flash_bytes: report.flash_bytes,
        sent_bytes: report.sent_bytes,
        returned_bytes: report.returned_bytes,
        buffered: report.buffered,
        scanned: report.scanned,
        are_groups_chosen: order.having.is_some(),
        are_groups_ordered: order.by.is_some(),
        costs,
    }
}
