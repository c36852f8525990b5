//! Condition programs: computations over each record, as plain data that was checked.
//!
//! ```text
//!  0         1      2               4                  6      8
//!  +---------+------+---------------+------------------+------+----------+-----+-------------+-----
//!  | version | zero | constants u16 | instructions u16 | zero | constant | ... | instruction | ...
//!  +---------+------+---------------+------------------+------+----------+-----+-------------+-----
//!  constant:     type u8 · is there u8 · length u16 · bytes         none there: length 0
//!                bool: 1 byte; numbers and timestamps: 8, little endian; string, bytes: as they are
//!  instruction:  code u8 · operation u8 · a u16 · b u16 · c u16
//!                1 field a                    2 constant a               3 float of a
//!                4 a operation b: 0 =, 1 <>, 2 <, 3 <=, 4 >, 5 >=        5 a operation b: 0 +, 1 -, 2 *, 3 /, 4 %
//!                6 minus a      7 not a       8 a and b      9 a or b    10 a is null
//!                11 a begins with constant b  12 a is one of c constants from b on, which ascend
//!                13 keep the records for which a is true             14 a is like constant b ([`super::like`])
//! ```
//! Each instruction defines the register of its own number, from registers before it. `keep` defines none. The
//! instructions behind it are computed for the records that it keeps.
//!
//! 1. A checked program is total: it has no jumps, each instruction has a result for all values of its operands' types, and NULL where
//!    SQL has none: a NULL operand, a division by zero, a result that its type does not hold.
//! 2. `and`, `or`, `not` have SQL's three values.
//! 3. Integers of both kinds compare with each other; arithmetic on them is exact, and its result an [`ScalarType::Int`].

use super::like::LIKE_BYTES_MAX;
use super::value::{OwnedScalar, ScalarType};
use super::wire::{ScanReader, WireError};
use std::cmp::Ordering;

pub const PROGRAM_VERSION: u8 = 1;
pub const INSTRUCTIONS_MAX: usize = 256;
pub const CONSTANTS_MAX: usize = 1024;
/// The most bytes of all constants together.
pub const CONSTANT_BYTES_MAX: usize = 64 << 10;

/// The number of the instruction that defines the register.
pub type Register = u16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Comparison {
    Equal = 0,
    NotEqual = 1,
    Less = 2,
    LessOrEqual = 3,
    Greater = 4,
    GreaterOrEqual = 5,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Arithmetic {
    Add = 0,
    Subtract = 1,
    Multiply = 2,
    Divide = 3,
    Remainder = 4,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instruction {
    Field(u16),
    Constant(u16),
    ToFloat(Register),
    Compare(Comparison, Register, Register),
    Arithmetic(Arithmetic, Register, Register),
    Negate(Register),
    Not(Register),
    And(Register, Register),
    Or(Register, Register),
    IsNull(Register),
    StartsWith(Register, u16),
    In { value: Register, first: u16, count: u16 },
    Keep(Register),
    Like(Register, u16),
}

/// A constant. `None` is a NULL of the type.
#[derive(Clone, PartialEq, Debug)]
pub struct Constant {
    pub scalar_type: ScalarType,
    pub value: Option<OwnedScalar>,
}

impl Constant {
    pub fn of(value: OwnedScalar) -> Constant {
        Constant { scalar_type: value.as_scalar().scalar_type(), value: Some(value) }
    }
}

/// The reason that a program is invalid, and the instruction that shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramError {
    TooManyInstructions,
    TooManyConstants,
    /// A constant whose value has another type than it says.
    Constant(usize),
    /// The instruction has an operand that is not defined before it.
    Operand(usize),
    /// The instruction has an operand of a type that it does not take.
    Type(usize),
    /// The instruction has a list that is empty, does not ascend, or has a NULL.
    List(usize),
}

impl Comparison {
    pub const ALL: [Comparison; 6] = [
        Comparison::Equal,
        Comparison::NotEqual,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
    ];

    #[inline]
    pub fn holds(self, ordering: Ordering) -> bool {
        match self {
            Comparison::Equal => ordering.is_eq(),
            Comparison::NotEqual => ordering.is_ne(),
            Comparison::Less => ordering.is_lt(),
            Comparison::LessOrEqual => ordering.is_le(),
            Comparison::Greater => ordering.is_gt(),
            Comparison::GreaterOrEqual => ordering.is_ge(),
        }
    }

    /// The comparison that holds for b and a if this one holds for a and b.
    pub fn mirrored(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            same => same,
        }
    }
}

impl Arithmetic {
    pub const ALL: [Arithmetic; 5] =
        [Arithmetic::Add, Arithmetic::Subtract, Arithmetic::Multiply, Arithmetic::Divide, Arithmetic::Remainder];
}

/// A program whose every instruction was checked against the types of a format's fields.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    instructions: Vec<Instruction>,
    constants: Vec<Constant>,
    /// By instruction; `None` for `keep`.
    types: Vec<Option<ScalarType>>,
}

impl Program {
    /// Checks a program for a format whose fields have these types.
    pub fn new(
        instructions: Vec<Instruction>,
        constants: Vec<Constant>,
        fields: &[ScalarType],
    ) -> Result<Program, ProgramError> {
        if instructions.len() > INSTRUCTIONS_MAX {
            return Err(ProgramError::TooManyInstructions);
        }
        let constant_bytes =
            constants.iter().filter_map(|constant| constant.value.as_ref()).map(OwnedScalar::heap_bytes);
        if constants.len() > CONSTANTS_MAX || constant_bytes.sum::<usize>() > CONSTANT_BYTES_MAX {
            return Err(ProgramError::TooManyConstants);
        }
        let is_typed = |constant: &Constant| match &constant.value {
            Some(value) => value.as_scalar().scalar_type() == constant.scalar_type,
            None => true,
        };
        if let Some(place) = constants.iter().position(|constant| !is_typed(constant)) {
            return Err(ProgramError::Constant(place));
        }
        let mut types = Vec::with_capacity(instructions.len());
        for (place, instruction) in instructions.iter().enumerate() {
            let defined = check(place, instruction, &types, &constants, fields)?;
            types.push(defined);
        }
        Ok(Program { instructions, constants, types })
    }

    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// The type of a register; `None` if no instruction defines it.
    pub fn register_type(&self, register: Register) -> Option<ScalarType> {
        self.types.get(usize::from(register)).copied().flatten()
    }
}

/// Checks an instruction. Returns the type of the register that it defines.
fn check(
    place: usize,
    instruction: &Instruction,
    types: &[Option<ScalarType>],
    constants: &[Constant],
    fields: &[ScalarType],
) -> Result<Option<ScalarType>, ProgramError> {
    let of =
        |register: Register| types.get(usize::from(register)).copied().flatten().ok_or(ProgramError::Operand(place));
    let constant = |number: u16| constants.get(usize::from(number)).ok_or(ProgramError::Operand(place));
    let require = |holds: bool| if holds { Ok(()) } else { Err(ProgramError::Type(place)) };
    let is_bool = |register| require(of(register)? == ScalarType::Bool);
    Ok(Some(match *instruction {
        Instruction::Field(field) => *fields.get(usize::from(field)).ok_or(ProgramError::Operand(place))?,
        Instruction::Constant(number) => constant(number)?.scalar_type,
        Instruction::ToFloat(a) => {
            require(of(a)?.is_number())?;
            ScalarType::Float
        }
        Instruction::Compare(_, a, b) => {
            let (a, b) = (of(a)?, of(b)?);
            require(a == b || a.is_integer() && b.is_integer())?;
            ScalarType::Bool
        }
        Instruction::Arithmetic(_, a, b) => {
            let (a, b) = (of(a)?, of(b)?);
            let is_integer = a.is_integer() && b.is_integer();
            require(is_integer || a == ScalarType::Float && b == ScalarType::Float)?;
            if is_integer { ScalarType::Int } else { ScalarType::Float }
        }
        Instruction::Negate(a) => {
            let a = of(a)?;
            require(a.is_number())?;
            if a == ScalarType::Float { a } else { ScalarType::Int }
        }
        Instruction::Not(a) => {
            is_bool(a)?;
            ScalarType::Bool
        }
        Instruction::And(a, b) | Instruction::Or(a, b) => {
            is_bool(a)?;
            is_bool(b)?;
            ScalarType::Bool
        }
        Instruction::IsNull(a) => {
            of(a)?;
            ScalarType::Bool
        }
        Instruction::StartsWith(a, prefix) => {
            let (a, prefix) = (of(a)?, constant(prefix)?);
            require(a.is_span() && prefix.scalar_type == a && prefix.value.is_some())?;
            ScalarType::Bool
        }
        Instruction::In { value, first, count } => {
            let (first, count) = (usize::from(first), usize::from(count));
            let list = constants.get(first..first + count).ok_or(ProgramError::Operand(place))?;
            check_list(of(value)?, list, place)?;
            ScalarType::Bool
        }
        Instruction::Keep(a) => {
            is_bool(a)?;
            return Ok(None);
        }
        Instruction::Like(a, pattern) => {
            let (a, pattern) = (of(a)?, constant(pattern)?);
            let is_short = pattern.value.as_ref().is_some_and(|value| value.heap_bytes() <= LIKE_BYTES_MAX);
            require(a.is_span() && pattern.scalar_type == a && is_short)?;
            ScalarType::Bool
        }
    }))
}

fn check_list(of: ScalarType, list: &[Constant], place: usize) -> Result<(), ProgramError> {
    let is_of = |constant: &Constant| {
        let listed = constant.scalar_type;
        listed == of || listed.is_integer() && of.is_integer()
    };
    if !list.iter().all(is_of) {
        return Err(ProgramError::Type(place));
    }
    let ascends = |pair: &[Constant]| match (&pair[0].value, &pair[1].value) {
        (Some(a), Some(b)) => a.as_scalar().compare(b.as_scalar()) == Some(Ordering::Less),
        _ => false,
    };
    let is_list = list.first().is_some_and(|first| first.value.is_some()) && list.windows(2).all(ascends);
    if is_list { Ok(()) } else { Err(ProgramError::List(place)) }
}

impl Instruction {
    pub const ENCODED_BYTES: usize = 8;

    fn encode(self) -> [u8; Instruction::ENCODED_BYTES] {
        let (code, operation, [a, b, c]) = match self {
            Instruction::Field(a) => (1, 0, [a, 0, 0]),
            Instruction::Constant(a) => (2, 0, [a, 0, 0]),
            Instruction::ToFloat(a) => (3, 0, [a, 0, 0]),
            Instruction::Compare(operation, a, b) => (4, operation as u8, [a, b, 0]),
            Instruction::Arithmetic(operation, a, b) => (5, operation as u8, [a, b, 0]),
            Instruction::Negate(a) => (6, 0, [a, 0, 0]),
            Instruction::Not(a) => (7, 0, [a, 0, 0]),
            Instruction::And(a, b) => (8, 0, [a, b, 0]),
            Instruction::Or(a, b) => (9, 0, [a, b, 0]),
            Instruction::IsNull(a) => (10, 0, [a, 0, 0]),
            Instruction::StartsWith(a, b) => (11, 0, [a, b, 0]),
            Instruction::In { value, first, count } => (12, 0, [value, first, count]),
            Instruction::Keep(a) => (13, 0, [a, 0, 0]),
            Instruction::Like(a, b) => (14, 0, [a, b, 0]),
        };
        let [a, b, c] = [a, b, c].map(u16::to_le_bytes);
        [code, operation, a[0], a[1], b[0], b[1], c[0], c[1]]
    }

    fn decode(bytes: [u8; Instruction::ENCODED_BYTES]) -> Result<Instruction, WireError> {
        let [code, operation, operands @ ..] = bytes;
        let operand = |place: usize| u16::from_le_bytes([operands[2 * place], operands[2 * place + 1]]);
        let (a, b, c) = (operand(0), operand(1), operand(2));
        let place = usize::from(operation);
        let instruction = match code {
            1 => Instruction::Field(a),
            2 => Instruction::Constant(a),
            3 => Instruction::ToFloat(a),
            4 => Instruction::Compare(*Comparison::ALL.get(place).ok_or(WireError::Malformed)?, a, b),
            5 => Instruction::Arithmetic(*Arithmetic::ALL.get(place).ok_or(WireError::Malformed)?, a, b),
            6 => Instruction::Negate(a),
            7 => Instruction::Not(a),
            8 => Instruction::And(a, b),
            9 => Instruction::Or(a, b),
            10 => Instruction::IsNull(a),
            11 => Instruction::StartsWith(a, b),
            12 => Instruction::In { value: a, first: b, count: c },
            13 => Instruction::Keep(a),
            14 => Instruction::Like(a, b),
            _ => return Err(WireError::Malformed),
        };
        if instruction.encode() == bytes { Ok(instruction) } else { Err(WireError::Malformed) }
    }
}

impl Constant {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.scalar_type as u8, u8::from(self.value.is_some())]);
        let mut put = |bytes: &[u8]| {
            out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        match &self.value {
            None => put(&[]),
            Some(OwnedScalar::Bool(value)) => put(&[u8::from(*value)]),
            Some(OwnedScalar::Int(value) | OwnedScalar::Timestamp(value)) => put(&value.to_le_bytes()),
            Some(OwnedScalar::Unsigned(value)) => put(&value.to_le_bytes()),
            Some(OwnedScalar::Float(value)) => put(&value.to_bits().to_le_bytes()),
            Some(OwnedScalar::Text(value)) => put(value.as_bytes()),
            Some(OwnedScalar::Bytes(value)) => put(value),
        }
    }

    fn decode(reader: &mut ScanReader<'_>) -> Result<Constant, WireError> {
        let scalar_type = ScalarType::of_code(reader.u8()?).ok_or(WireError::Malformed)?;
        let is_there = reader.u8()?;
        let length = usize::from(reader.u16()?);
        let mut bytes = ScanReader::new(reader.take(length)?);
        let value = match (is_there, scalar_type) {
            (0, _) => None,
            (1, ScalarType::Bool) => match bytes.u8()? {
                byte @ (0 | 1) => Some(OwnedScalar::Bool(byte == 1)),
                _ => return Err(WireError::Malformed),
            },
            (1, ScalarType::Int) => Some(OwnedScalar::Int(bytes.u64()? as i64)),
            (1, ScalarType::Unsigned) => Some(OwnedScalar::Unsigned(bytes.u64()?)),
            (1, ScalarType::Float) => Some(OwnedScalar::Float(f64::from_bits(bytes.u64()?))),
            (1, ScalarType::Timestamp) => Some(OwnedScalar::Timestamp(bytes.u64()? as i64)),
            (1, ScalarType::Text) => Some(OwnedScalar::Text(bytes.text(length)?.into())),
            (1, ScalarType::Bytes) => Some(OwnedScalar::Bytes(bytes.take(length)?.into())),
            _ => return Err(WireError::Malformed),
        };
        if bytes.is_empty() { Ok(Constant { scalar_type, value }) } else { Err(WireError::Malformed) }
    }
}

impl Program {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[PROGRAM_VERSION, 0]);
        out.extend_from_slice(&(self.constants.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.instructions.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        self.constants.iter().for_each(|constant| constant.encode(out));
        self.instructions.iter().for_each(|instruction| out.extend_from_slice(&instruction.encode()));
    }

    /// Reads a program from the front of `reader`, which may go on behind it, and checks it.
    pub fn decode(reader: &mut ScanReader<'_>, fields: &[ScalarType]) -> Result<Program, WireError> {
        let [version, 0] = reader.array()? else { return Err(WireError::Malformed) };
        if version != PROGRAM_VERSION {
            return Err(WireError::Version(version));
        }
        let (constants, instructions) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        if reader.u16()? != 0 || constants > CONSTANTS_MAX || instructions > INSTRUCTIONS_MAX {
            return Err(WireError::Malformed);
        }
        let constants = (0..constants).map(|_| Constant::decode(reader)).collect::<Result<_, WireError>>()?;
        let instructions =
            (0..instructions).map(|_| Instruction::decode(reader.array()?)).collect::<Result<_, WireError>>()?;
        Program::new(instructions, constants, fields).map_err(|_| WireError::Malformed)
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
