//! A query: a format, a program, and what is wanted of the records that it keeps.
//!
//! ```text
//!  0         1      2       3        4             6                8       16       18     24
//!  +---------+------+-------+--------+-------------+----------------+-------+--------+------+
//!  | version | kind | flags | misfit | columns u16 | aggregates u16 | limit | order  | zero |
//!  |         |      |       | policy |             |                | u64   | u16    | 6    |
//!  +---------+------+-------+--------+-------------+----------------+-------+--------+------+
//!  24       | column u16 ... | aggregate ... | format | program |
//!  kind: 0 rows, 1 groups      flags: bit 0 the rows are ordered by register `order`, bit 1 from the greatest to the least
//!  misfit policy: 0 a record that does not fit ends the query, 1 is passed over and counted
//!  aggregate: kind u8 · of a register u8 · register u16
//! ```
//! All numbers are little-endian; columns and keys of groups are registers of the program ([`super::program`]).
//!
//! 1. A checked query names registers that its program defines, of types that its aggregates take.
//! 2. Ordered rows have a limit, of at most [`TOP_ROWS_MAX`].

use super::aggregate::AggregateKind;
use super::format::Format;
use super::groups::TypedAggregate;
use super::program::{Program, Register};
use super::top::TOP_ROWS_MAX;
use super::value::ScalarType;
use super::wire::{ScanReader, WireError};

pub const QUERY_VERSION: u8 = 1;
/// Columns, or keys and aggregates of groups.
pub const QUERY_COLUMNS_MAX: usize = 256;

const FLAG_ORDERED: u8 = 1;
const FLAG_DESCENDING: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MisfitPolicy {
    Fail,
    Skip,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowOrder {
    pub by: Register,
    pub is_descending: bool,
}

/// `count(*)` has no register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aggregate {
    pub kind: AggregateKind,
    pub register: Option<Register>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueryOutput {
    Rows { columns: Vec<Register>, order: Option<RowOrder>, limit: Option<u64> },
    Groups { keys: Vec<Register>, aggregates: Vec<Aggregate> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueryError {
    /// A register that the program does not define.
    Register,
    /// An aggregate of values that it does not take.
    Aggregate,
    NoColumns,
    TooManyColumns,
    /// Ordered rows without a limit, or with one above [`TOP_ROWS_MAX`].
    OrderWithoutLimit,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Query {
    format: Format,
    program: Program,
    output: QueryOutput,
    policy: MisfitPolicy,
}

impl Query {
    /// The program was checked for the types of this format's fields.
    pub fn new(
        format: Format,
        program: Program,
        output: QueryOutput,
        policy: MisfitPolicy,
    ) -> Result<Query, QueryError> {
        let is_defined = |register: &Register| program.register_type(*register).is_some();
        let (registers, columns) = match &output {
            QueryOutput::Rows { columns, order, limit } => {
                let by = order.map(|order| order.by);
                if order.is_some() && limit.is_none_or(|limit| limit > TOP_ROWS_MAX as u64) {
                    return Err(QueryError::OrderWithoutLimit);
                }
                (columns.iter().copied().chain(by).collect::<Vec<Register>>(), columns.len())
            }
            QueryOutput::Groups { keys, aggregates } => {
                let of = aggregates.iter().filter_map(|aggregate| aggregate.register);
                (keys.iter().copied().chain(of).collect(), keys.len() + aggregates.len())
            }
        };
        if columns == 0 {
            return Err(QueryError::NoColumns);
        }
        if columns > QUERY_COLUMNS_MAX {
            return Err(QueryError::TooManyColumns);
        }
        if !registers.iter().all(is_defined) {
            return Err(QueryError::Register);
        }
        let query = Query { format, program, output, policy };
        let takes = |(kind, of): &TypedAggregate| kind.result_type(*of).is_some();
        let is_counted = |aggregate: &Aggregate| aggregate.register.is_some() || aggregate.kind == AggregateKind::Count;
        if let QueryOutput::Groups { aggregates, .. } = &query.output {
            let has_values = aggregates.iter().all(is_counted);
            if !has_values || !query.aggregates().iter().all(takes) {
                return Err(QueryError::Aggregate);
            }
        }
        Ok(query)
    }

    pub fn format(&self) -> &Format {
        &self.format
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn output(&self) -> &QueryOutput {
        &self.output
    }

    pub fn policy(&self) -> MisfitPolicy {
        self.policy
    }

    pub(super) fn register_type(&self, register: Register) -> ScalarType {
        let Some(of) = self.program.register_type(register) else { unreachable!("a checked query names registers") };
        of
    }

    pub(super) fn types(&self, registers: &[Register]) -> Vec<ScalarType> {
        registers.iter().map(|register| self.register_type(*register)).collect()
    }

    /// Its aggregates, with the types of their values. `count(*)` counts what is always there.
    pub(super) fn aggregates(&self) -> Vec<TypedAggregate> {
        let QueryOutput::Groups { aggregates, .. } = &self.output else { return Vec::new() };
        let typed = |aggregate: &Aggregate| {
            let of = aggregate.register.map_or(ScalarType::Bool, |register| self.register_type(register));
            (aggregate.kind, of)
        };
        aggregates.iter().map(typed).collect()
    }

    pub fn result_types(&self) -> Vec<ScalarType> {
        match &self.output {
            QueryOutput::Rows { columns, .. } => self.types(columns),
            QueryOutput::Groups { keys, .. } => {
                let mut types = self.types(keys);
                types.extend(self.aggregates().iter().filter_map(|(kind, of)| kind.result_type(*of)));
                types
            }
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, columns, aggregates) = match &self.output {
            QueryOutput::Rows { columns, .. } => (0, columns, &[][..]),
            QueryOutput::Groups { keys, aggregates } => (1, keys, &aggregates[..]),
        };
        let (order, limit) = match self.output {
            QueryOutput::Rows { order, limit, .. } => (order, limit),
            QueryOutput::Groups { .. } => (None, None),
        };
        let descending = if order.is_some_and(|order| order.is_descending) { FLAG_DESCENDING } else { 0 };
        let flags = descending | if order.is_some() { FLAG_ORDERED } else { 0 };
        let policy = u8::from(self.policy == MisfitPolicy::Skip);
        out.extend_from_slice(&[QUERY_VERSION, kind, flags, policy]);
        out.extend_from_slice(&(columns.len() as u16).to_le_bytes());
        out.extend_from_slice(&(aggregates.len() as u16).to_le_bytes());
        out.extend_from_slice(&limit.unwrap_or(u64::MAX).to_le_bytes());
        out.extend_from_slice(&order.map_or(0, |order| order.by).to_le_bytes());
        out.extend_from_slice(&[0; 6]);
        columns.iter().for_each(|column| out.extend_from_slice(&column.to_le_bytes()));
        for Aggregate { kind, register } in aggregates {
            out.extend_from_slice(&[*kind as u8, u8::from(register.is_some())]);
            out.extend_from_slice(&register.unwrap_or(0).to_le_bytes());
        }
        self.format.encode(out);
        self.program.encode(out);
    }

    /// Reads a query from the front of `reader`, which may go on behind it, and checks it.
    pub fn decode(reader: &mut ScanReader<'_>) -> Result<Query, WireError> {
        let [version, kind, flags, policy] = reader.array()?;
        if version != QUERY_VERSION {
            return Err(WireError::Version(version));
        }
        let (columns, aggregates) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        let (limit, by) = (reader.u64()?, reader.u16()?);
        if reader.array::<6>()? != [0; 6] || columns + aggregates > QUERY_COLUMNS_MAX || flags > 3 {
            return Err(WireError::Malformed);
        }
        let columns = (0..columns).map(|_| reader.u16()).collect::<Result<Vec<Register>, WireError>>()?;
        let aggregates = (0..aggregates).map(|_| decode_aggregate(reader)).collect::<Result<Vec<_>, WireError>>()?;
        let format = Format::decode(reader)?;
        let fields: Vec<ScalarType> = format.fields().iter().map(|field| field.kind.scalar_type()).collect();
        let program = Program::decode(reader, &fields)?;
        let limit = (limit != u64::MAX).then_some(limit);
        let order = match flags {
            0 if by == 0 => None,
            flags if flags & FLAG_ORDERED != 0 => Some(RowOrder { by, is_descending: flags & FLAG_DESCENDING != 0 }),
            _ => return Err(WireError::Malformed),
        };
        let output = match kind {
            0 if aggregates.is_empty() => QueryOutput::Rows { columns, order, limit },
            1 if order.is_none() && limit.is_none() => QueryOutput::Groups { keys: columns, aggregates },
            _ => return Err(WireError::Malformed),
        };
        let policy = match policy {
            0 => MisfitPolicy::Fail,
            1 => MisfitPolicy::Skip,
            _ => return Err(WireError::Malformed),
        };
        Query::new(format, program, output, policy).map_err(|_| WireError::Malformed)
    }
}

fn decode_aggregate(reader: &mut ScanReader<'_>) -> Result<Aggregate, WireError> {
    let [kind, has_register] = reader.array()?;
    let register = reader.u16()?;
    let kind = AggregateKind::of_code(kind).ok_or(WireError::Malformed)?;
    match (has_register, register) {
        (0, 0) => Ok(Aggregate { kind, register: None }),
        (1, register) => Ok(Aggregate { kind, register: Some(register) }),
        _ => Err(WireError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::program::Instruction;

    fn query(output: QueryOutput) -> Result<Query, QueryError> {
        let format = Format::parse("key: id u32be; value: name string").unwrap();
        let instructions =
            vec![Instruction::Field(0), Instruction::Field(1), Instruction::IsNull(0), Instruction::Keep(2)];
        let program = Program::new(instructions, vec![], &[ScalarType::Int, ScalarType::Text]).unwrap();
        Query::new(format, program, output, MisfitPolicy::Skip)
    }

    fn rows(columns: &[Register], order: Option<Register>, limit: Option<u64>) -> QueryOutput {
        let order = order.map(|by| RowOrder { by, is_descending: true });
        QueryOutput::Rows { columns: columns.to_vec(), order, limit }
    }

    fn groups(keys: &[Register], kind: AggregateKind, register: Option<Register>) -> QueryOutput {
        QueryOutput::Groups { keys: keys.to_vec(), aggregates: vec![Aggregate { kind, register }] }
    }

    #[test]
    fn a_query_reads_back_and_a_cut_one_does_not() {
        for output in [
            rows(&[1, 0], None, None),
            rows(&[0], Some(1), Some(10)),
            groups(&[1], AggregateKind::Count, None),
            groups(&[], AggregateKind::Average, Some(0)),
        ] {
            let query = query(output).unwrap();
            let mut bytes = Vec::new();
            query.encode(&mut bytes);
            assert_eq!(Query::decode(&mut ScanReader::new(&bytes)), Ok(query));
            for length in 0..bytes.len() {
                assert!(Query::decode(&mut ScanReader::new(&bytes[..length])).is_err(), "{length} bytes");
            }
            bytes[0] = 9;
            assert_eq!(Query::decode(&mut ScanReader::new(&bytes)), Err(WireError::Version(9)));
        }
    }

    #[test]
    fn the_head_has_its_bytes() {
        let mut bytes = Vec::new();
        query(rows(&[1, 0], Some(1), Some(5))).unwrap().encode(&mut bytes);
        let mut expected = vec![1, 0, 3, 1, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        expected.extend_from_slice(&[1, 0, 0, 0]);
        assert_eq!(bytes[..expected.len()], expected);
    }

    #[test]
    fn what_does_not_make_sense_is_refused() {
        for (output, expected) in [
            (rows(&[], None, None), QueryError::NoColumns),
            (rows(&[4], None, None), QueryError::Register),
            (rows(&[3], None, None), QueryError::Register),
            (rows(&[0; QUERY_COLUMNS_MAX + 1], None, None), QueryError::TooManyColumns),
            (rows(&[0], Some(0), None), QueryError::OrderWithoutLimit),
            (rows(&[0], Some(0), Some(TOP_ROWS_MAX as u64 + 1)), QueryError::OrderWithoutLimit),
            (groups(&[], AggregateKind::Sum, Some(1)), QueryError::Aggregate),
            (groups(&[], AggregateKind::Sum, None), QueryError::Aggregate),
            (groups(&[9], AggregateKind::Count, None), QueryError::Register),
        ] {
            assert_eq!(query(output), Err(expected));
        }
    }
}
