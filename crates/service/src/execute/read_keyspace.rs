//! A keyspace that is read at one moment: that of the request, or that of a freeze.

use tapetum::{
    FrozenKeyspace, FrozenView, GraphOptions, GraphProgress, GraphReport, KeyRange, KeyspaceHandle, KeyspaceKind,
    Query, QueryError, QueryReport, QuerySide, RowSink, SnapshotItems,
};
use tapetum_kernels::scan::Format;

use super::{OpenStore, freezes};
use crate::caller::CallerLeft;
use crate::failure::{Failure, FailureKind};

pub enum ReadKeyspace<'a> {
    Now(OpenStore<'a>, KeyspaceHandle),
    Frozen(OpenStore<'a>, FrozenView, FrozenKeyspace),
}

impl<'a> ReadKeyspace<'a> {
    pub fn find(open: OpenStore<'a>, name: &str, freeze: Option<u64>) -> Result<ReadKeyspace<'a>, Failure> {
        let Some(id) = freeze else { return Ok(ReadKeyspace::Now(open, open.keyspace(name)?)) };
        let view = freezes::find(open, id)?;
        let keyspace = view.keyspace(name).map_err(|_| freezes::unknown_keyspace(&view, name))?;
        Ok(ReadKeyspace::Frozen(open, view, keyspace))
    }

    /// The same, for work at the drive that is an application's.
    pub fn for_application(self, application: Option<&str>) -> Result<ReadKeyspace<'a>, Failure> {
        let Some(name) = application else { return Ok(self) };
        Ok(match self {
            ReadKeyspace::Now(open, keyspace) => {
                ReadKeyspace::Now(open, keyspace.of_application(open.application(name)?))
            }
            ReadKeyspace::Frozen(open, view, keyspace) => {
                ReadKeyspace::Frozen(open, view, keyspace.of_application(open.application(name)?))
            }
        })
    }

    pub fn kind(&self) -> KeyspaceKind {
        match self {
            ReadKeyspace::Now(_, keyspace) => keyspace.keyspace().kind(),
            ReadKeyspace::Frozen(_, _, keyspace) => keyspace.entry().kind,
        }
    }

    pub fn format(&self) -> Result<Option<Format>, Failure> {
        let (ReadKeyspace::Now(open, _) | ReadKeyspace::Frozen(open, ..)) = self;
        let format = match self {
            ReadKeyspace::Now(_, keyspace) => keyspace.format(),
            ReadKeyspace::Frozen(_, _, keyspace) => keyspace.format(),
        };
        format.map_err(|error| open.failure(error))
    }

    pub fn items(&self, prefix: &[u8]) -> Result<SnapshotItems, Failure> {
        let items = match self {
            ReadKeyspace::Now(_, keyspace) => keyspace.snapshot_items(prefix),
            ReadKeyspace::Frozen(_, _, keyspace) => keyspace.items(prefix),
        };
        items.map_err(|error| self.failure(error))
    }

    pub fn scan(&self, range: KeyRange) -> Result<SnapshotItems, Failure> {
        let items = match self {
            ReadKeyspace::Now(_, keyspace) => keyspace.scan(range),
            ReadKeyspace::Frozen(_, _, keyspace) => keyspace.scan(range),
        };
        items.map_err(|error| self.failure(error))
    }

    pub fn query_while(
        &self,
        query: &Query,
        side: QuerySide,
        range: &KeyRange,
        rows: &mut dyn RowSink,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<QueryReport, Failure> {
        let report = match self {
            ReadKeyspace::Now(_, keyspace) => keyspace.query_while(query, side, range, rows, go_on),
            ReadKeyspace::Frozen(_, _, keyspace) => keyspace.query_while(query, side, range, rows, go_on),
        };
        report.map_err(|error| self.failure(error))
    }

    pub fn betweenness(
        &self,
        edges: &Query,
        options: &GraphOptions,
        side: QuerySide,
        go_on: &mut dyn FnMut(GraphProgress) -> bool,
    ) -> Result<GraphReport, Failure> {
        let report = match self {
            ReadKeyspace::Now(_, keyspace) => keyspace.betweenness(edges, options, side, go_on),
            ReadKeyspace::Frozen(_, _, keyspace) => keyspace.betweenness(edges, options, side, go_on),
        };
        report.map_err(|error| self.failure(error))
    }

    /// The failure of reading it. If its freeze has ended meanwhile, it says why that did.
    pub fn failure(&self, error: QueryError) -> Failure {
        match self {
            ReadKeyspace::Now(open, _) => failure_of_query(*open, error),
            ReadKeyspace::Frozen(open, view, _) => match (error, view.check()) {
                (QueryError::SnapshotTooOld, Err(ended)) => freezes::failure(*open, ended),
                (error, _) => failure_of_query(*open, error),
            },
        }
    }
}

pub fn failure_of_query(open: OpenStore<'_>, error: QueryError) -> Failure {
    match error {
        QueryError::Store(error) => open.failure(error),
        QueryError::Freeze(error) => freezes::failure(open, error),
        QueryError::Cancelled => CallerLeft.into(),
        error @ (QueryError::TooManyReplaced | QueryError::SnapshotTooOld | QueryError::Result) => {
            Failure::new(FailureKind::Store, error.to_string())
        }
        error => Failure::bad(error.to_string()),
    }
}
