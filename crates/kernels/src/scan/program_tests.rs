use super::*;

const FIELDS: [ScalarType; 4] = [ScalarType::Int, ScalarType::Text, ScalarType::Unsigned, ScalarType::Float];

fn int(value: i64) -> Constant {
    Constant::of(OwnedScalar::Int(value))
}

fn program(instructions: &[Instruction], constants: &[Constant]) -> Result<Program, ProgramError> {
    Program::new(instructions.to_vec(), constants.to_vec(), &FIELDS)
}

#[test]
fn a_program_has_its_bytes() {
    let text = Constant::of(OwnedScalar::Text("ab".into()));
    let null = Constant { scalar_type: ScalarType::Float, value: None };
    let compare = Instruction::Compare(Comparison::GreaterOrEqual, 0, 1);
    let listed = Instruction::In { value: 0, first: 0, count: 1 };
    let instructions = [Instruction::Field(0), Instruction::Constant(0), compare, Instruction::Keep(2), listed];
    let program = program(&instructions, &[int(-2), text, null]).unwrap();
    let mut bytes = Vec::new();
    program.encode(&mut bytes);
    let mut expected = vec![1, 0, 3, 0, 5, 0, 0, 0];
    expected.extend_from_slice(&[2, 1, 8, 0, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    expected.extend_from_slice(&[6, 1, 2, 0, b'a', b'b', 4, 0, 0, 0]);
    expected.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[4, 5, 0, 0, 1, 0, 0, 0, 13, 0, 2, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(bytes, expected);
    assert_eq!(Program::decode(&mut ScanReader::new(&bytes), &FIELDS).as_ref(), Ok(&program));
    for length in 0..bytes.len() {
        assert!(Program::decode(&mut ScanReader::new(&bytes[..length]), &FIELDS).is_err(), "{length} bytes");
    }
}

#[test]
fn what_reads_registers_that_are_not_defined_is_refused() {
    let compare = |a, b| Instruction::Compare(Comparison::Equal, a, b);
    for (instructions, expected) in [
        (vec![compare(0, 0)], ProgramError::Operand(0)),
        (vec![Instruction::Field(0), compare(0, 1)], ProgramError::Operand(1)),
        (vec![Instruction::Field(4)], ProgramError::Operand(0)),
        (vec![Instruction::Constant(1)], ProgramError::Operand(0)),
        (
            vec![Instruction::Field(0), Instruction::IsNull(0), Instruction::Keep(1), Instruction::Not(2)],
            ProgramError::Operand(3),
        ),
        (vec![Instruction::Field(0), Instruction::In { value: 0, first: 0, count: 2 }], ProgramError::Operand(1)),
        (vec![Instruction::Field(0), Instruction::In { value: 0, first: 0, count: 0 }], ProgramError::List(1)),
        (vec![Instruction::Field(0); INSTRUCTIONS_MAX + 1], ProgramError::TooManyInstructions),
    ] {
        assert_eq!(program(&instructions, &[int(1)]), Err(expected), "{instructions:?}");
    }
}

#[test]
fn what_mixes_types_is_refused() {
    let fields = [0, 1, 2, 3].map(Instruction::Field);
    let with = |last: Instruction| program(&[&fields[..], &[last]].concat(), &[int(1)]);
    for last in [
        Instruction::Compare(Comparison::Equal, 0, 1),
        Instruction::Compare(Comparison::Equal, 0, 3),
        Instruction::Arithmetic(Arithmetic::Add, 1, 1),
        Instruction::Arithmetic(Arithmetic::Add, 2, 3),
        Instruction::ToFloat(1),
        Instruction::Negate(1),
        Instruction::Not(0),
        Instruction::And(0, 0),
        Instruction::StartsWith(1, 0),
        Instruction::StartsWith(0, 0),
        Instruction::Like(1, 0),
        Instruction::Like(0, 0),
        Instruction::In { value: 1, first: 0, count: 1 },
        Instruction::Keep(0),
    ] {
        assert_eq!(with(last), Err(ProgramError::Type(4)), "{last:?}");
    }
    for (last, defined) in [
        (Instruction::Compare(Comparison::Equal, 0, 2), ScalarType::Bool),
        (Instruction::Arithmetic(Arithmetic::Add, 2, 2), ScalarType::Int),
        (Instruction::ToFloat(2), ScalarType::Float),
        (Instruction::Negate(2), ScalarType::Int),
        (Instruction::In { value: 2, first: 0, count: 1 }, ScalarType::Bool),
    ] {
        assert_eq!(with(last).unwrap().register_type(4), Some(defined), "{last:?}");
    }
}

#[test]
fn a_pattern_is_text_of_a_bounded_length() {
    let like = |bytes: usize| {
        let pattern = Constant::of(OwnedScalar::Text("a".repeat(bytes).into()));
        program(&[Instruction::Field(1), Instruction::Like(0, 0)], &[pattern])
    };
    assert_eq!(like(LIKE_BYTES_MAX).unwrap().register_type(1), Some(ScalarType::Bool));
    assert_eq!(like(LIKE_BYTES_MAX + 1), Err(ProgramError::Type(1)));
    let null = Constant { scalar_type: ScalarType::Text, value: None };
    assert_eq!(program(&[Instruction::Field(1), Instruction::Like(0, 0)], &[null]), Err(ProgramError::Type(1)));
}

#[test]
fn lists_ascend() {
    let listed = |constants: &[Constant]| {
        let count = constants.len() as u16;
        program(&[Instruction::Field(0), Instruction::In { value: 0, first: 0, count }], constants)
    };
    let null = Constant { scalar_type: ScalarType::Int, value: None };
    assert!(listed(&[int(1), int(2)]).is_ok());
    for constants in [[int(2), int(1)], [int(1), int(1)], [null.clone(), int(1)], [int(1), null]] {
        assert_eq!(listed(&constants), Err(ProgramError::List(1)));
    }
}
