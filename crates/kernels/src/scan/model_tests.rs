//! Checks the machine against an interpreter that takes one record and one instruction at a time.

use super::fields::{FieldReader, RawField};
use super::json_scanner::unescape;
use super::like::LikePattern;
use super::machine::BatchMisfits;
use super::program::{Arithmetic, Comparison, Constant, Instruction, Program};
use super::{BATCH_ROWS, Format, Machine, OwnedScalar, RowBatch, ScalarType};
use proptest::prelude::*;

const FORMAT: &str = "key: k u16be; value: a i8, b u64, c f64, d bool, t seconds32, s string8, y bytes8?, \
                      j json $.j int, e json $.e string";

type Values = Vec<Option<OwnedScalar>>;

/// Runs a program on one record. Returns its registers, or none if the record is not kept. The error is the field that
/// does not fit.
fn interpret(format: &Format, program: &Program, key: &[u8], value: &[u8]) -> Result<Option<Values>, usize> {
    let reader = FieldReader::new(format);
    let mut registers = Values::new();
    for instruction in program.instructions() {
        let of = |register: &u16| registers[usize::from(*register)].clone();
        let constant = |number: &u16| program.constants()[usize::from(*number)].value.clone();
        let defined = match instruction {
            Instruction::Field(field) => {
                let raw = reader.read(usize::from(*field), key, value).map_err(|_| usize::from(*field))?;
                raw.map(owned)
            }
            Instruction::Constant(number) => constant(number),
            Instruction::ToFloat(a) => of(a).map(|a| match a {
                OwnedScalar::Float(float) => OwnedScalar::Float(float),
                a => OwnedScalar::Float(a.as_scalar().integer().unwrap() as f64),
            }),
            Instruction::Compare(comparison, a, b) => both(of(a), of(b))
                .map(|(a, b)| OwnedScalar::Bool(comparison.holds(a.as_scalar().compare(b.as_scalar()).unwrap()))),
            Instruction::Arithmetic(operation, a, b) => {
                both(of(a), of(b)).and_then(|(a, b)| compute(*operation, &a, &b))
            }
            Instruction::Negate(a) => of(a).and_then(|a| match a {
                OwnedScalar::Float(float) => Some(OwnedScalar::Float(-float)),
                a => i64::try_from(-a.as_scalar().integer()?).ok().map(OwnedScalar::Int),
            }),
            Instruction::Not(a) => truth(of(a)).map(|a| OwnedScalar::Bool(!a)),
            Instruction::And(a, b) => match (truth(of(a)), truth(of(b))) {
                (Some(false), _) | (_, Some(false)) => Some(OwnedScalar::Bool(false)),
                (Some(true), Some(true)) => Some(OwnedScalar::Bool(true)),
                _ => None,
            },
            Instruction::Or(a, b) => match (truth(of(a)), truth(of(b))) {
                (Some(true), _) | (_, Some(true)) => Some(OwnedScalar::Bool(true)),
                (Some(false), Some(false)) => Some(OwnedScalar::Bool(false)),
                _ => None,
            },
            Instruction::IsNull(a) => Some(OwnedScalar::Bool(of(a).is_none())),
            Instruction::StartsWith(a, prefix) => both(of(a), constant(prefix)).map(|(a, prefix)| {
                OwnedScalar::Bool(a.as_scalar().bytes().unwrap().starts_with(prefix.as_scalar().bytes().unwrap()))
            }),
            Instruction::Like(a, pattern) => both(of(a), constant(pattern)).map(|(a, pattern)| {
                let (value, is_text) = (a.as_scalar(), a.as_scalar().scalar_type() == ScalarType::Text);
                let pattern = LikePattern::new(pattern.as_scalar().bytes().unwrap(), is_text);
                OwnedScalar::Bool(pattern.matches(value.bytes().unwrap()))
            }),
            Instruction::In { value, first, count } => of(value).map(|value| {
                let is_it = |number| value.as_scalar().compare(constant(&number).unwrap().as_scalar()).unwrap().is_eq();
                OwnedScalar::Bool((*first..first + count).any(is_it))
            }),
            Instruction::Keep(a) => match truth(of(a)) {
                Some(true) => None,
                _ => return Ok(None),
            },
        };
        registers.push(defined);
    }
    Ok(Some(registers))
}

fn owned(raw: RawField<'_>) -> OwnedScalar {
    match raw {
        RawField::Bool(value) => OwnedScalar::Bool(value),
        RawField::Int(value) => OwnedScalar::Int(value),
        RawField::Unsigned(value) => OwnedScalar::Unsigned(value),
        RawField::Float(value) => OwnedScalar::Float(value),
        RawField::Timestamp(value) => OwnedScalar::Timestamp(value),
        RawField::Bytes(value) => OwnedScalar::Bytes(value.into()),
        RawField::Text(value) => OwnedScalar::Text(String::from_utf8(value.to_vec()).unwrap().into()),
        RawField::Escaped(value) => {
            let mut text = Vec::new();
            let whole = unescape(value, |piece| {
                text.extend_from_slice(piece);
                true
            });
            assert!(whole.unwrap());
            OwnedScalar::Text(String::from_utf8(text).unwrap().into())
        }
    }
}

fn both(a: Option<OwnedScalar>, b: Option<OwnedScalar>) -> Option<(OwnedScalar, OwnedScalar)> {
    Some((a?, b?))
}

fn truth(a: Option<OwnedScalar>) -> Option<bool> {
    match a? {
        OwnedScalar::Bool(value) => Some(value),
        other => panic!("{other:?}"),
    }
}

fn compute(operation: Arithmetic, a: &OwnedScalar, b: &OwnedScalar) -> Option<OwnedScalar> {
    if let (OwnedScalar::Float(a), OwnedScalar::Float(b)) = (a, b) {
        return Some(OwnedScalar::Float(match operation {
            Arithmetic::Add => a + b,
            Arithmetic::Subtract => a - b,
            Arithmetic::Multiply => a * b,
            Arithmetic::Divide | Arithmetic::Remainder if *b == 0.0 => return None,
            Arithmetic::Divide => a / b,
            Arithmetic::Remainder => a % b,
        }));
    }
    let (a, b) = (a.as_scalar().integer()?, b.as_scalar().integer()?);
    let exact = match operation {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a.checked_mul(b)?,
        Arithmetic::Divide | Arithmetic::Remainder if b == 0 => return None,
        Arithmetic::Divide => a / b,
        Arithmetic::Remainder => a % b,
    };
    i64::try_from(exact).ok().map(OwnedScalar::Int)
}

fn constants() -> Vec<Constant> {
    let ints = [i64::MIN, -3, 0, 1, 2, 100, i64::MAX].map(|value| Constant::of(OwnedScalar::Int(value)));
    let unsigned = [0, 2, u64::MAX].map(|value| Constant::of(OwnedScalar::Unsigned(value)));
    let floats = [-1.5, 0.0, 2.0, f64::NAN].map(|value| Constant::of(OwnedScalar::Float(value)));
    let texts = ["", "a", "ab", "ä", "%b%"].map(|value| Constant::of(OwnedScalar::Text(value.into())));
    let bytes = [&b""[..], b"a", b"ab", b"_%"].map(|value| Constant::of(OwnedScalar::Bytes(value.into())));
    let bools = [false, true].map(|value| Constant::of(OwnedScalar::Bool(value)));
    let times = [0, 5_000_000].map(|value| Constant::of(OwnedScalar::Timestamp(value)));
    let nulls = ScalarType::ALL.map(|scalar_type| Constant { scalar_type, value: None });
    let lists = [&ints[..], &unsigned, &floats, &texts, &bytes, &bools, &times, &nulls];
    lists.concat()
}

/// Random programs, without the instructions that are invalid at their place.
fn program() -> impl Strategy<Value = Program> {
    proptest::collection::vec((0u8..15, any::<u8>(), any::<u16>(), any::<u16>()), 1..40).prop_map(|wishes| {
        let (constants, fields) = (constants(), types());
        let mut instructions: Vec<Instruction> = (0..fields.len() as u16).map(Instruction::Field).collect();
        for (code, operation, a, b) in wishes {
            let (operation, defined) = (usize::from(operation), instructions.len() as u16);
            let (x, y) = (a % defined, b % defined);
            let wish = match code {
                0 | 1 => Instruction::Constant(a % constants.len() as u16),
                2 => Instruction::ToFloat(x),
                3 | 4 => Instruction::Compare(Comparison::ALL[operation % 6], x, y),
                5 | 6 => Instruction::Arithmetic(Arithmetic::ALL[operation % 5], x, y),
                7 => Instruction::Negate(x),
                8 => Instruction::Not(x),
                9 => Instruction::And(x, y),
                10 => Instruction::Or(x, y),
                11 => Instruction::IsNull(x),
                12 => Instruction::StartsWith(x, b % constants.len() as u16),
                13 => Instruction::Like(x, b % constants.len() as u16),
                _ if operation < 40 => Instruction::Keep(x),
                _ => Instruction::In { value: x, first: b % constants.len() as u16, count: operation as u16 % 4 },
            };
            instructions.push(wish);
            if Program::new(instructions.clone(), constants.clone(), &fields).is_err() {
                instructions.pop();
            }
        }
        Program::new(instructions, constants, &fields).unwrap()
    })
}

fn types() -> Vec<ScalarType> {
    Format::parse(FORMAT).unwrap().fields().iter().map(|field| field.kind.scalar_type()).collect()
}

/// Records that fit, and some that do not.
fn record() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let number = prop_oneof![Just(0u64), Just(1), Just(2), Just(u64::MAX), any::<u64>()];
    let float = prop_oneof![Just(0.0), Just(-1.5), Just(f64::NAN), any::<f64>()];
    let text = prop_oneof![Just(""), Just("a"), Just("abc"), Just("ä")];
    let json = prop_oneof![
        Just(r#"{"j":2,"e":"a"}"#),
        Just(r#"{"e":"\u00e4","j":null}"#),
        Just(r#"{"j":-9223372036854775808,"e":"a\u0062"}"#),
        Just("[]"),
        Just(r#"{"j":"no"}"#),
    ];
    let parts = (any::<u16>(), any::<i8>(), number, float, 0u8..20, any::<i32>(), text, json, 0usize..400);
    parts.prop_map(|(key, a, b, c, d, t, s, json, cut)| {
        let mut value = vec![a as u8];
        value.extend_from_slice(&b.to_le_bytes());
        value.extend_from_slice(&c.to_le_bytes());
        // Now and then the byte is no bool.
        value.push(if d == 19 { 2 } else { d % 2 });
        value.extend_from_slice(&t.to_le_bytes());
        value.push(s.len() as u8);
        value.extend_from_slice(s.as_bytes());
        value.extend_from_slice(&[1, b'a']);
        value.extend_from_slice(json.as_bytes());
        if cut < value.len() {
            value.truncate(cut);
        }
        (key.to_be_bytes().to_vec(), value)
    })
}

fn is_same(a: Option<super::Scalar<'_>>, b: Option<&OwnedScalar>) -> bool {
    match (a, b.map(OwnedScalar::as_scalar)) {
        // NaNs are equal, and zeros are equal only with equal signs.
        (Some(super::Scalar::Float(a)), Some(super::Scalar::Float(b))) => {
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        }
        (a, b) => a == b,
    }
}

proptest! {
    #[test]
    fn the_machine_does_what_the_interpreter_does(
        program in program(),
        batches in proptest::collection::vec(proptest::collection::vec(record(), 0..40), 1..3),
    ) {
        let format = Format::parse(FORMAT).unwrap();
        let mut machine = Machine::new(&format, program.clone());
        let mut batch = RowBatch::new();
        for records in batches {
            batch.clear();
            records.iter().for_each(|(key, value)| batch.push(key, value));
            let kept = machine.run(&batch).to_vec();
            let mut misfits = BatchMisfits::default();
            for (row, (key, value)) in records.iter().enumerate() {
                let expected = interpret(&format, &program, key, value);
                prop_assert_eq!(kept.contains(&(row as u16)), matches!(expected, Ok(Some(_))), "row {}", row);
                match expected {
                    Err(field) => {
                        misfits.count += 1;
                        let first = machine.misfits().first.expect("a record does not fit");
                        prop_assert!(misfits.first.is_some() || (first.row, first.field) == (row, field));
                        misfits.first = Some(first);
                    }
                    Ok(registers) => {
                        for (register, value) in registers.iter().flatten().enumerate() {
                            let register = register as u16;
                            let is_defined = program.register_type(register).is_some();
                            prop_assert!(
                                !is_defined || is_same(machine.value(&batch, register, row), value.as_ref()),
                                "register {} of row {}", register, row
                            );
                        }
                    }
                }
            }
            prop_assert_eq!(machine.misfits(), misfits);
        }
    }

    #[test]
    fn a_program_reads_back_from_its_bytes(program in program()) {
        let mut bytes = Vec::new();
        program.encode(&mut bytes);
        let read = Program::decode(&mut super::wire::ScanReader::new(&bytes), &types()).unwrap();
        let mut again = Vec::new();
        read.encode(&mut again);
        prop_assert_eq!((read.instructions(), again), (program.instructions(), bytes));
    }

    #[test]
    fn bytes_of_anything_are_no_program_or_one_that_runs(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        record in record(),
    ) {
        if let [version, zero, ..] = &mut bytes[..] {
            (*version, *zero) = (1, 0);
        }
        if let Ok(program) = Program::decode(&mut super::wire::ScanReader::new(&bytes), &types()) {
            let mut machine = Machine::new(&Format::parse(FORMAT).unwrap(), program);
            let mut batch = RowBatch::new();
            batch.push(&record.0, &record.1);
            machine.run(&batch);
        }
    }
}

#[test]
fn a_full_batch_is_of_one_size() {
    let mut batch = RowBatch::new();
    (0..BATCH_ROWS).for_each(|_| batch.push(b"k", b""));
    assert!(batch.is_full() && batch.len() == BATCH_ROWS);
    batch.clear();
    assert!(!batch.push_with(1, 1, |_, _| false) && batch.is_empty() && batch.row_bytes() == 0);
}
