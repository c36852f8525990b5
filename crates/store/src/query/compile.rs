//! Trees to instructions.

use super::having::GroupScope;
use super::literals::{Literal, NO_DECIMAL, is_decimal};
use super::text_error::TextPlace;
use super::{Clause, QueryProblem, QueryTextError, parse};
use sqlparser::ast::{BinaryOperator, Expr, Ident, InTarget, Spanned, UnaryOperator};
use sqlparser::tokenizer::Span;
use std::cmp::Ordering;
use tapetum_kernels::scan::program::{
    Arithmetic, CONSTANTS_MAX, Comparison, Constant, INSTRUCTIONS_MAX, Instruction, Program, Register,
};
use tapetum_kernels::scan::{Format, OwnedScalar, ScalarType};

pub(super) struct Compiler<'a> {
    pub format: &'a Format,
    instructions: Vec<Instruction>,
    /// The type of each instruction; that of a `keep` is never used.
    types: Vec<ScalarType>,
    constants: Vec<Constant>,
    /// The clause and the text that are compiled, for errors.
    pub clause: Clause,
    pub text: &'a str,
    /// Set while a condition on groups is compiled: then fields are the columns of their result.
    pub groups: Option<Box<GroupScope<'a>>>,
}

/// The result of compiling an expression.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub value: OperandValue,
    /// The place of its first word.
    pub span: Span,
}

#[derive(Clone, Debug)]
pub(super) enum OperandValue {
    Register(Register),
    /// Its type shows where it is used.
    Literal(Literal),
}

impl Operand {
    /// Whether it is NULL for all records, of any type.
    pub fn is_null(&self) -> bool {
        matches!(self.value, OperandValue::Literal(Literal::Null))
    }
}

impl<'a> Compiler<'a> {
    pub fn new(format: &'a Format) -> Compiler<'a> {
        let (instructions, types, constants) = (Vec::new(), Vec::new(), Vec::new());
        Compiler { format, instructions, types, constants, clause: Clause::Where, text: "", groups: None }
    }

    /// `fields`: their types.
    pub fn program(self, fields: &[ScalarType]) -> Result<Program, QueryTextError> {
        let place = TextPlace::end(self.clause, self.text);
        // Only constants may be too many: everything else was checked when it was compiled.
        Program::new(self.instructions, self.constants, fields)
            .map_err(|_| place.error(QueryProblem::TooManyInstructions))
    }

    pub fn error(&self, span: Span, problem: QueryProblem) -> QueryTextError {
        TextPlace { clause: self.clause, text: self.text, span }.error(problem)
    }

    /// Compiles a condition. Later instructions run only for the records for which it is true.
    pub fn condition(&mut self, clause: Clause, text: &'a str) -> Result<(), QueryTextError> {
        (self.clause, self.text) = (clause, text);
        let tree = parse::expression(clause, text)?;
        // From the left: `a and b and c` is `(a and b) and c`.
        let (mut parts, mut rest) = (Vec::new(), &tree);
        loop {
            match rest {
                Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                    parts.push(&**right);
                    rest = left;
                }
                Expr::Nested(inner) => rest = inner,
                last => {
                    parts.push(last);
                    break;
                }
            }
        }
        for part in parts.into_iter().rev() {
            let operand = self.expression(part)?;
            let kept = self.boolean(operand)?;
            self.emit(Instruction::Keep(kept), ScalarType::Bool)?;
        }
        Ok(())
    }

    pub fn type_of(&self, register: Register) -> ScalarType {
        self.types[usize::from(register)]
    }

    /// Whether a register has the same value for all records.
    pub fn is_constant(&self, register: Register) -> bool {
        let register = usize::from(register);
        let mut constants: Vec<bool> = Vec::with_capacity(register + 1);
        for instruction in &self.instructions[..=register] {
            let of = |operand: Register| constants[usize::from(operand)];
            let is_constant = match *instruction {
                Instruction::Field(_) => false,
                Instruction::Constant(_) => true,
                Instruction::ToFloat(a)
                | Instruction::Negate(a)
                | Instruction::Not(a)
                | Instruction::IsNull(a)
                | Instruction::StartsWith(a, _)
                | Instruction::Like(a, _)
                | Instruction::In { value: a, .. }
                | Instruction::Keep(a) => of(a),
                Instruction::Compare(_, a, b)
                | Instruction::Arithmetic(_, a, b)
                | Instruction::And(a, b)
                | Instruction::Or(a, b) => of(a) && of(b),
            };
            constants.push(is_constant);
        }
        constants[register]
    }

    /// The register of an instruction, which may be there already.
    pub fn emit(&mut self, instruction: Instruction, of: ScalarType) -> Result<Register, QueryTextError> {
        if let Some(place) = self.instructions.iter().position(|there| *there == instruction) {
            return Ok(place as Register);
        }
        if self.instructions.len() == INSTRUCTIONS_MAX {
            return Err(self.error(Span::empty(), QueryProblem::TooManyInstructions));
        }
        self.instructions.push(instruction);
        self.types.push(of);
        Ok((self.instructions.len() - 1) as Register)
    }

    pub fn constant_number(&mut self, constant: Constant) -> Result<u16, QueryTextError> {
        if let Some(place) = self.constants.iter().position(|there| *there == constant) {
            return Ok(place as u16);
        }
        if self.constants.len() == CONSTANTS_MAX {
            return Err(self.error(Span::empty(), QueryProblem::TooManyInstructions));
        }
        self.constants.push(constant);
        Ok((self.constants.len() - 1) as u16)
    }

    pub fn constant(&mut self, constant: Constant) -> Result<Register, QueryTextError> {
        let of = constant.scalar_type;
        let number = self.constant_number(constant)?;
        self.emit(Instruction::Constant(number), of)
    }

    /// The register of an operand; a literal gets the type that it has by itself.
    pub fn register(&mut self, operand: Operand) -> Result<Register, QueryTextError> {
        match operand.value {
            OperandValue::Register(register) => Ok(register),
            OperandValue::Literal(literal) => {
                let constant = literal.constant(literal.default_type());
                match constant.map_err(|problem| self.error(operand.span, problem))? {
                    Some(constant) => self.constant(constant),
                    None => unreachable!("a literal has its own type"),
                }
            }
        }
    }

    fn boolean(&mut self, operand: Operand) -> Result<Register, QueryTextError> {
        let span = operand.span;
        let register = self.register(operand)?;
        match self.type_of(register) {
            ScalarType::Bool => Ok(register),
            other => Err(self.error(span, QueryProblem::NotCondition(other.name()))),
        }
    }

    pub fn expression(&mut self, tree: &Expr) -> Result<Operand, QueryTextError> {
        let unsupported =
            |compiler: &Compiler<'_>, what| Err(compiler.error(tree.span(), QueryProblem::Unsupported(what)));
        if let Some(column) = self.group_column(tree)? {
            return Ok(column);
        }
        match tree {
            Expr::Nested(inner) => self.expression(inner),
            Expr::Identifier(name) => self.field(name),
            Expr::CompoundIdentifier(_) => unsupported(self, "a field is named without a table"),
            Expr::Value(value) => {
                let literal = Literal::of(&value.value).map_err(|problem| self.error(value.span, problem))?;
                Ok(Operand { value: OperandValue::Literal(literal), span: value.span })
            }
            Expr::Cast { data_type, .. } if is_decimal(data_type) => unsupported(self, NO_DECIMAL),
            Expr::Cast { .. } => unsupported(self, "there is no cast: a field has the type that its format says"),
            Expr::TypedString(typed) => {
                let span = typed.value.span;
                let literal = Literal::of_typed(typed).map_err(|problem| self.error(span, problem))?;
                Ok(Operand { value: OperandValue::Literal(literal), span })
            }
            Expr::UnaryOp { op, expr } => self.unary(*op, expr, tree),
            Expr::BinaryOp { .. } => self.chain(tree),
            Expr::IsNull(inner) => self.is_null(inner, false),
            Expr::IsNotNull(inner) => self.is_null(inner, true),
            Expr::IsTrue(inner) => self.is_truth(inner, true, false),
            Expr::IsNotTrue(inner) => self.is_truth(inner, true, true),
            Expr::IsFalse(inner) => self.is_truth(inner, false, false),
            Expr::IsNotFalse(inner) => self.is_truth(inner, false, true),
            Expr::Between { expr, negated, low, high } => self.between(expr, *negated, low, high),
            Expr::In { expr, target: InTarget::List(list), negated, global: false } => {
                self.one_of(expr, list, *negated)
            }
            Expr::In { .. } => unsupported(self, "in takes a list, as in (1, 2, 3)"),
            Expr::Like { negated, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, escape_char.as_deref(), *negated)
            }
            Expr::Like { .. } | Expr::ILike { .. } | Expr::SimilarTo { .. } | Expr::RLike { .. } => {
                unsupported(self, "of patterns there is like, for which upper and lower case differ")
            }
            Expr::Function(function) if super::select::is_aggregate(function) => {
                Err(self.error(tree.span(), QueryProblem::Aggregate))
            }
            Expr::Function(_) => unsupported(self, "there are no functions but count, sum, min, max, avg"),
            Expr::Exists { .. } | Expr::Subquery(_) => unsupported(self, "there are no queries within queries"),
            _ => unsupported(self, "there are comparisons, between, in, like, is null, and, or, not, + - * / %"),
        }
    }

    fn field(&mut self, name: &Ident) -> Result<Operand, QueryTextError> {
        let place = self.format.find(&name.value);
        let place = place.ok_or_else(|| self.error(name.span, QueryProblem::unknown_field(self.format)))?;
        let of = self.format.fields()[place].kind.scalar_type();
        let register = self.emit(Instruction::Field(place as u16), of)?;
        Ok(Operand { value: OperandValue::Register(register), span: name.span })
    }

    fn unary(&mut self, operator: UnaryOperator, inner: &Expr, tree: &Expr) -> Result<Operand, QueryTextError> {
        let operand = self.expression(inner)?;
        let span = operand.span;
        match (operator, operand.value) {
            (UnaryOperator::Not, value) => {
                let a = self.boolean(Operand { value, span })?;
                self.defined(Instruction::Not(a), ScalarType::Bool, span)
            }
            (UnaryOperator::Minus | UnaryOperator::Plus, OperandValue::Literal(literal)) => {
                let signed = if operator == UnaryOperator::Minus { literal.negated() } else { Ok(literal) };
                let literal = signed.map_err(|problem| self.error(span, problem))?;
                Ok(Operand { value: OperandValue::Literal(literal), span })
            }
            (UnaryOperator::Minus | UnaryOperator::Plus, OperandValue::Register(a)) => {
                let of = self.type_of(a);
                if !of.is_number() {
                    return Err(self.error(span, QueryProblem::NotNumber(of.name())));
                }
                if operator == UnaryOperator::Plus {
                    return Ok(Operand { value: OperandValue::Register(a), span });
                }
                let of = if of == ScalarType::Float { of } else { ScalarType::Int };
                self.defined(Instruction::Negate(a), of, span)
            }
            _ => Err(self.error(tree.span(), QueryProblem::Unsupported("of signs before a value there are - + not"))),
        }
    }

    fn defined(&mut self, instruction: Instruction, of: ScalarType, span: Span) -> Result<Operand, QueryTextError> {
        Ok(Operand { value: OperandValue::Register(self.emit(instruction, of)?), span })
    }

    /// Operators one behind the other: `a or b or c` is `(a or b) or c`. Long chains take no stack.
    fn chain(&mut self, tree: &Expr) -> Result<Operand, QueryTextError> {
        let (mut chain, mut rest) = (Vec::new(), tree);
        while let Expr::BinaryOp { left, op, right } = rest
            && !self.is_group_key(rest)
        {
            chain.push((op, right));
            rest = left;
        }
        let mut a = self.expression(rest)?;
        for (operator, right) in chain.into_iter().rev() {
            let b = self.expression(right)?;
            a = self.binary(operator, a, b)?;
        }
        Ok(a)
    }

    fn binary(&mut self, operator: &BinaryOperator, a: Operand, b: Operand) -> Result<Operand, QueryTextError> {
        let span = a.span;
        let connect: Option<fn(Register, Register) -> Instruction> = match operator {
            BinaryOperator::And => Some(Instruction::And),
            BinaryOperator::Or => Some(Instruction::Or),
            _ => None,
        };
        if let Some(connect) = connect {
            let (a, b) = (self.boolean(a)?, self.boolean(b)?);
            return self.defined(connect(a, b), ScalarType::Bool, span);
        }
        if let Some(comparison) = comparison_of(operator) {
            return self.compare(comparison, a, b);
        }
        let Some(arithmetic) = arithmetic_of(operator) else {
            let problem = QueryProblem::Unsupported("of operators there are = <> < <= > >= + - * / % and or");
            return Err(self.error(span, problem));
        };
        if a.is_null() && b.is_null() {
            return Ok(a);
        }
        let spans = [a.span, b.span];
        let (a, b) = self.unified(a, b)?;
        for (register, span) in [a, b].into_iter().zip(spans) {
            let of = self.type_of(register);
            if !of.is_number() {
                return Err(self.error(span, QueryProblem::NotNumber(of.name())));
            }
        }
        let of = if self.type_of(a) == ScalarType::Float { ScalarType::Float } else { ScalarType::Int };
        self.defined(Instruction::Arithmetic(arithmetic, a, b), of, span)
    }

    fn compare(&mut self, comparison: Comparison, a: Operand, b: Operand) -> Result<Operand, QueryTextError> {
        let span = a.span;
        let (a, b) = self.unified(a, b)?;
        self.defined(Instruction::Compare(comparison, a, b), ScalarType::Bool, span)
    }

    /// Registers of types that compare, and compute if they are numbers.
    fn unified(&mut self, a: Operand, b: Operand) -> Result<(Register, Register), QueryTextError> {
        match (a.value, b.value) {
            (OperandValue::Register(a), OperandValue::Register(r)) => self.unified_registers(a, r, b.span),
            (OperandValue::Register(r), OperandValue::Literal(literal)) => self.unified_literal(r, &literal, b.span),
            (OperandValue::Literal(literal), OperandValue::Register(r)) => {
                self.unified_literal(r, &literal, a.span).map(|(r, constant)| (constant, r))
            }
            // NULL is of any type: the other side says which.
            (value @ OperandValue::Literal(_), OperandValue::Literal(Literal::Null)) => {
                let r = self.register(Operand { value, span: a.span })?;
                self.unified_literal(r, &Literal::Null, b.span)
            }
            (OperandValue::Literal(l), value) => {
                let r = self.register(Operand { value, span: b.span })?;
                self.unified_literal(r, &l, a.span).map(|(r, constant)| (constant, r))
            }
        }
    }

    fn unified_registers(
        &mut self,
        a: Register,
        b: Register,
        span: Span,
    ) -> Result<(Register, Register), QueryTextError> {
        let (of_a, of_b) = (self.type_of(a), self.type_of(b));
        if of_a == of_b || of_a.is_integer() && of_b.is_integer() {
            return Ok((a, b));
        }
        if of_a.is_number() && of_b.is_number() {
            return Ok((self.float_of(a)?, self.float_of(b)?));
        }
        Err(self.error(span, QueryProblem::types(of_a, of_b)))
    }

    fn float_of(&mut self, a: Register) -> Result<Register, QueryTextError> {
        match self.type_of(a) {
            ScalarType::Float => Ok(a),
            _ => self.emit(Instruction::ToFloat(a), ScalarType::Float),
        }
    }

    fn unified_literal(
        &mut self,
        register: Register,
        literal: &Literal,
        span: Span,
    ) -> Result<(Register, Register), QueryTextError> {
        let constant = literal.constant(self.type_of(register)).map_err(|problem| self.error(span, problem))?;
        match constant {
            Some(constant) => Ok((register, self.constant(constant)?)),
            None => {
                let register = self.float_of(register)?;
                self.unified_literal(register, literal, span)
            }
        }
    }

    fn is_null(&mut self, inner: &Expr, is_negated: bool) -> Result<Operand, QueryTextError> {
        let operand = self.expression(inner)?;
        let span = operand.span;
        let a = self.register(operand)?;
        self.negated(Instruction::IsNull(a), is_negated, span)
    }

    pub fn negated(
        &mut self,
        instruction: Instruction,
        is_negated: bool,
        span: Span,
    ) -> Result<Operand, QueryTextError> {
        let a = self.emit(instruction, ScalarType::Bool)?;
        match is_negated {
            true => self.defined(Instruction::Not(a), ScalarType::Bool, span),
            false => Ok(Operand { value: OperandValue::Register(a), span }),
        }
    }

    /// `a is true` is false for a NULL.
    fn is_truth(&mut self, inner: &Expr, truth: bool, is_negated: bool) -> Result<Operand, QueryTextError> {
        let operand = self.expression(inner)?;
        let span = operand.span;
        let a = self.boolean(operand)?;
        let a = if truth { a } else { self.emit(Instruction::Not(a), ScalarType::Bool)? };
        let null = self.emit(Instruction::IsNull(a), ScalarType::Bool)?;
        let there = self.emit(Instruction::Not(null), ScalarType::Bool)?;
        // A false beside the NULL decides.
        self.negated(Instruction::And(a, there), is_negated, span)
    }

    fn between(&mut self, inner: &Expr, is_negated: bool, low: &Expr, high: &Expr) -> Result<Operand, QueryTextError> {
        let value = self.expression(inner)?;
        let (low, high) = (self.expression(low)?, self.expression(high)?);
        let span = value.span;
        let low = self.compare(Comparison::GreaterOrEqual, value.clone(), low)?;
        let high = self.compare(Comparison::LessOrEqual, value, high)?;
        let (low, high) = (self.register(low)?, self.register(high)?);
        self.negated(Instruction::And(low, high), is_negated, span)
    }

    fn one_of(&mut self, inner: &Expr, list: &[Expr], is_negated: bool) -> Result<Operand, QueryTextError> {
        let value = self.expression(inner)?;
        let span = value.span;
        if value.is_null() {
            // Nobody knows whether NULL is one of them, whatever they are.
            return Ok(value);
        }
        let register = self.register(value)?;
        let of = self.type_of(register);
        // Constants form one list; other items are compared by themselves.
        let (mut constants, mut others) = (Vec::new(), Vec::new());
        for item in list {
            let item = self.expression(item)?;
            let constant = match &item.value {
                OperandValue::Literal(literal) => {
                    literal.constant(of).map_err(|problem| self.error(item.span, problem))?
                }
                OperandValue::Register(_) => None,
            };
            match constant.and_then(|constant| constant.value) {
                Some(value) => constants.push(value),
                None => others.push(item),
            }
        }
        let mut any = match constants.is_empty() {
            true => None,
            false => Some(self.listed(register, constants)?),
        };
        for item in others {
            let equal =
                self.compare(Comparison::Equal, Operand { value: OperandValue::Register(register), span }, item)?;
            let equal = self.register(equal)?;
            any = Some(match any {
                Some(any) => self.emit(Instruction::Or(any, equal), ScalarType::Bool)?,
                None => equal,
            });
        }
        let Some(any) = any else {
            return Err(self.error(span, QueryProblem::Unsupported("in takes a list of one value or more")));
        };
        match is_negated {
            true => self.defined(Instruction::Not(any), ScalarType::Bool, span),
            false => Ok(Operand { value: OperandValue::Register(any), span }),
        }
    }

    fn listed(&mut self, value: Register, mut list: Vec<OwnedScalar>) -> Result<Register, QueryTextError> {
        let order = |a: &OwnedScalar, b: &OwnedScalar| a.as_scalar().compare(b.as_scalar()).unwrap_or(Ordering::Equal);
        list.sort_by(order);
        list.dedup_by(|a, b| order(a, b).is_eq());
        let (first, count) = (self.constants.len(), list.len());
        if first + count > CONSTANTS_MAX {
            return Err(self.error(Span::empty(), QueryProblem::TooManyInstructions));
        }
        self.constants.extend(list.into_iter().map(Constant::of));
        self.emit(Instruction::In { value, first: first as u16, count: count as u16 }, ScalarType::Bool)
    }
}

fn comparison_of(operator: &BinaryOperator) -> Option<Comparison> {
    Some(match operator {
        BinaryOperator::Eq => Comparison::Equal,
        BinaryOperator::NotEq => Comparison::NotEqual,
        BinaryOperator::Lt => Comparison::Less,
        BinaryOperator::LtEq => Comparison::LessOrEqual,
        BinaryOperator::Gt => Comparison::Greater,
        BinaryOperator::GtEq => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

fn arithmetic_of(operator: &BinaryOperator) -> Option<Arithmetic> {
    Some(match operator {
        BinaryOperator::Plus => Arithmetic::Add,
        BinaryOperator::Minus => Arithmetic::Subtract,
        BinaryOperator::Multiply => Arithmetic::Multiply,
        BinaryOperator::Divide => Arithmetic::Divide,
        BinaryOperator::Modulo => Arithmetic::Remainder,
        _ => return None,
    })
}
