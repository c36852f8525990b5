//! `having`: a condition on groups. The host computes it from the columns of their result, once all parts are merged.
//!
//! ```text
//! having count(*) > 1 and year < 2000       the columns of the result: keys, aggregates
//!        field 1    >     field 0 <         an aggregate that is not selected is computed all the same
//! ```

use super::compile::{Compiler, Operand, OperandValue};
use super::select::{is_aggregate, written};
use super::{Clause, QueryProblem, QueryTextError};
use sqlparser::ast::{Expr, Function, Spanned};
use tapetum_kernels::scan::ScalarType;
use tapetum_kernels::scan::program::{Instruction, Program, Register};
use tapetum_kernels::scan::query::Aggregate;

/// The columns of a result of groups: keys, then aggregates.
#[derive(Default)]
pub(super) struct GroupColumns {
    pub keys: Vec<GroupKey>,
    pub aggregates: Vec<Aggregate>,
    /// Those that are selected: names, and places among the columns.
    pub named: Vec<(String, usize)>,
}

pub(super) struct GroupKey {
    pub register: Register,
    /// As it was written.
    pub written: String,
}

/// The names that a condition on groups may use.
pub(super) struct GroupScope<'a> {
    /// Compiles the arguments of aggregates: the drive computes them for each record.
    records: Compiler<'a>,
    columns: GroupColumns,
}

impl GroupColumns {
    pub fn place_of_aggregate(&mut self, aggregate: Aggregate) -> usize {
        let found = self.aggregates.iter().position(|other| *other == aggregate);
        let place = found.unwrap_or_else(|| {
            self.aggregates.push(aggregate);
            self.aggregates.len() - 1
        });
        self.keys.len() + place
    }
}

impl GroupScope<'_> {
    fn key(&self, tree: &Expr) -> Option<usize> {
        let written = written(tree);
        self.columns.keys.iter().position(|key| key.written == written)
    }

    fn types(&self) -> Vec<ScalarType> {
        let keys = self.columns.keys.iter().map(|key| self.records.type_of(key.register));
        let aggregates = self.columns.aggregates.iter().map(|aggregate| {
            let of = aggregate.register.map_or(ScalarType::Bool, |register| self.records.type_of(register));
            let Some(of) = aggregate.kind.result_type(of) else { unreachable!("it was checked when it was compiled") };
            of
        });
        keys.chain(aggregates).collect()
    }
}

impl<'a> Compiler<'a> {
    /// The program that keeps a group; its fields are the columns, to which it may add aggregates.
    pub(super) fn having(&mut self, text: &'a str, columns: &mut GroupColumns) -> Result<Program, QueryTextError> {
        let format = self.format;
        let records = std::mem::replace(self, Compiler::new(format));
        self.groups = Some(Box::new(GroupScope { records, columns: std::mem::take(columns) }));
        self.condition(Clause::Having, text)?;
        let Some(scope) = self.groups.take() else { unreachable!("it was set above") };
        let (types, GroupScope { records, columns: found }) = (scope.types(), *scope);
        *columns = found;
        std::mem::replace(self, records).program(&types)
    }

    /// Whether this is grouped by, so that it is not looked into.
    pub(super) fn is_group_key(&self, tree: &Expr) -> bool {
        self.groups.as_ref().is_some_and(|scope| scope.key(tree).is_some())
    }

    /// The column of groups that a part of a condition on them means; `None` if the part is computed from its own parts.
    pub(super) fn group_column(&mut self, tree: &Expr) -> Result<Option<Operand>, QueryTextError> {
        let Some(scope) = &self.groups else { return Ok(None) };
        let place = match tree {
            tree if let Some(place) = scope.key(tree) => place,
            Expr::Function(function) if is_aggregate(function) => self.group_aggregate(function)?,
            Expr::Identifier(name) => {
                let named = scope.columns.named.iter().filter(|(other, _)| *other == name.value);
                let mut places: Vec<usize> = named.map(|(_, place)| *place).collect();
                places.dedup();
                let problem = match places[..] {
                    [place] => return self.column_of_place(place, tree).map(Some),
                    [] if self.format.find(&name.value).is_none() => QueryProblem::unknown_field(self.format),
                    [] => QueryProblem::NotOfGroups,
                    _ => QueryProblem::NameOfTwo,
                };
                return Err(self.error(name.span, problem));
            }
            _ => return Ok(None),
        };
        self.column_of_place(place, tree).map(Some)
    }

    fn column_of_place(&mut self, place: usize, tree: &Expr) -> Result<Operand, QueryTextError> {
        let Some(scope) = &self.groups else { unreachable!("a condition on groups has them") };
        let of = scope.types()[place];
        let register = self.emit(Instruction::Field(place as u16), of)?;
        Ok(Operand { value: OperandValue::Register(register), span: tree.span() })
    }

    fn group_aggregate(&mut self, function: &Function) -> Result<usize, QueryTextError> {
        let (clause, text) = (self.clause, self.text);
        let Some(scope) = &mut self.groups else { unreachable!("a condition on groups has them") };
        (scope.records.clause, scope.records.text) = (clause, text);
        let aggregate = scope.records.aggregate(function)?;
        Ok(scope.columns.place_of_aggregate(aggregate))
    }
}
