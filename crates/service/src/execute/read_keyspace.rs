//! A keyspace that is read at one moment: that of the request, or that of a freeze.

use tapetum::{
    FrozenView, GraphOptions, GraphProgress, GraphReport, KeyRange, KeyspaceKind, Query, QueryError, QueryReport,
    QuerySide, ReadKeyspace, RowSink, SnapshotItems,
};
use tapetum_kernels::scan::Format;

use super::{OpenStore, freezes};
use crate::caller::CallerLeft;
use crate::failure::{Failure, FailureKind};

pub struct KeyspaceToRead<'a> {
    open: OpenStore<'a>,
    keyspace: ReadKeyspace,
    /// The freeze that it is of.
    freeze: Option<FrozenView>,
}

impl<'a> KeyspaceToRead<'a> {
    pub fn find(open: OpenStore<'a>, name: &str, freeze: Option<u64>) -> Result<KeyspaceToRead<'a>, Failure> {
        let Some(id) = freeze else {
            return Ok(KeyspaceToRead { open, keyspace: open.keyspace(name)?.into(), freeze: None });
        };
        let view = freezes::find(open, id)?;
        let keyspace = view.keyspace(name).map_err(|_| freezes::unknown_keyspace(&view, name))?;
        Ok(KeyspaceToRead { open, keyspace: keyspace.reading().clone(), freeze: Some(view) })
    }

    /// The same, for work at the drive that is an application's.
    pub fn for_application(self, application: Option<&str>) -> Result<KeyspaceToRead<'a>, Failure> {
        let Some(name) = application else { return Ok(self) };
        let application = self.open.application(name)?;
        Ok(KeyspaceToRead { keyspace: self.keyspace.of_application(application), ..self })
    }

    pub fn kind(&self) -> KeyspaceKind {
        self.keyspace.kind()
    }

    pub fn format(&self) -> Result<Option<Format>, Failure> {
        self.keyspace.format().map_err(|error| self.open.failure(error))
    }

    pub fn items(&self, prefix: &[u8]) -> Result<SnapshotItems, Failure> {
        self.keyspace.items(prefix).map_err(|error| self.failure(error))
    }

    pub fn scan(&self, range: KeyRange) -> Result<SnapshotItems, Failure> {
        self.keyspace.scan(range).map_err(|error| self.failure(error))
    }

    pub fn query_while(
        &self,
        query: &Query,
        side: QuerySide,
        range: &KeyRange,
        rows: &mut dyn RowSink,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<QueryReport, Failure> {
        self.keyspace.query_while(query, side, range, rows, go_on).map_err(|error| self.failure(error))
    }

    pub fn betweenness(
        &self,
        edges: &Query,
        options: &GraphOptions,
        side: QuerySide,
        go_on: &mut dyn FnMut(GraphProgress) -> bool,
    ) -> Result<GraphReport, Failure> {
        self.keyspace.betweenness(edges, options, side, go_on).map_err(|error| self.failure(error))
    }

    /// The failure of reading it. If its freeze has ended meanwhile, it says why that did.
    pub fn failure(&self, error: QueryError) -> Failure {
        match (error, self.freeze.as_ref().map(FrozenView::check)) {
            (QueryError::SnapshotTooOld, Some(Err(ended))) => freezes::failure(self.open, ended),
            (error, _) => failure_of_query(self.open, error),
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
