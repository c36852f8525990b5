//! `like`: the shape of a pattern decides what the drive runs for it.
//!
//! ```text
//! 'text'      equal to a constant
//! 'text%'     begins with a constant
//! any other   a pattern of its own kind ([`tapetum_kernels::scan::like`])
//! ```

use super::compile::{Compiler, Operand, OperandValue};
use super::literals::Literal;
use super::{QueryProblem, QueryTextError};
use sqlparser::ast::Expr;
use tapetum_kernels::scan::like::LIKE_BYTES_MAX;
use tapetum_kernels::scan::program::{Comparison, Instruction};

const ESCAPE_DEFAULT: char = '\\';

#[derive(Clone, Copy, PartialEq)]
enum PatternSign {
    /// `%`
    Many,
    /// `_`
    One,
    Is(char),
}

impl Compiler<'_> {
    pub(super) fn like(
        &mut self,
        inner: &Expr,
        pattern: &Expr,
        escape: Option<&Expr>,
        is_negated: bool,
    ) -> Result<Operand, QueryTextError> {
        let operand = self.expression(inner)?;
        if operand.is_null() {
            return Ok(operand);
        }
        let span = operand.span;
        let a = self.register(operand)?;
        let of = self.type_of(a);
        if !of.is_span() {
            return Err(self.error(span, QueryProblem::NotText(of.name())));
        }
        let escape = match escape {
            Some(escape) => self.escape(escape)?,
            None => Some(ESCAPE_DEFAULT),
        };
        let pattern = self.expression(pattern)?;
        if pattern.is_null() {
            return Ok(pattern);
        }
        let refused = |compiler: &Self, problem| Err(compiler.error(pattern.span, problem));
        let OperandValue::Literal(Literal::Text(text)) = &pattern.value else {
            return refused(self, QueryProblem::Pattern);
        };
        let Some(signs) = signs(text, escape) else { return refused(self, QueryProblem::PatternEnd) };
        let (plain, is_prefix) = match signs.split_last() {
            Some((PatternSign::Many, before)) => (plain(before), true),
            _ => (plain(&signs), false),
        };
        let wanted = plain.clone().unwrap_or_else(|| with_escapes(&signs));
        if plain.is_none() && wanted.len() > LIKE_BYTES_MAX {
            return refused(self, QueryProblem::PatternTooLong(LIKE_BYTES_MAX));
        }
        let constant = Literal::Text(wanted).constant(of).map_err(|problem| self.error(pattern.span, problem))?;
        let Some(constant) = constant else { unreachable!("a string is a string or bytes") };
        let instruction = match (plain.is_some(), is_prefix) {
            (true, true) => Instruction::StartsWith(a, self.constant_number(constant)?),
            (true, false) => Instruction::Compare(Comparison::Equal, a, self.constant(constant)?),
            (false, _) => Instruction::Like(a, self.constant_number(constant)?),
        };
        self.negated(instruction, is_negated, span)
    }

    /// The character behind `escape`; `None` for an empty text.
    fn escape(&mut self, tree: &Expr) -> Result<Option<char>, QueryTextError> {
        let operand = self.expression(tree)?;
        let character = match &operand.value {
            OperandValue::Literal(Literal::Text(text)) => {
                let mut characters = text.chars();
                (characters.next(), characters.next())
            }
            _ => (None, Some(' ')),
        };
        match character {
            (character, None) => Ok(character),
            _ => Err(self.error(operand.span, QueryProblem::EscapeCharacter)),
        }
    }
}

/// `None` where nothing follows an escape.
fn signs(text: &str, escape: Option<char>) -> Option<Vec<PatternSign>> {
    let (mut signs, mut characters) = (Vec::new(), text.chars());
    while let Some(character) = characters.next() {
        signs.push(match character {
            character if Some(character) == escape => PatternSign::Is(characters.next()?),
            '%' => PatternSign::Many,
            '_' => PatternSign::One,
            character => PatternSign::Is(character),
        });
    }
    Some(signs)
}

/// The text that they are, where each stands for one character alone.
fn plain(signs: &[PatternSign]) -> Option<String> {
    let character = |sign: &PatternSign| match sign {
        PatternSign::Is(character) => Some(*character),
        PatternSign::Many | PatternSign::One => None,
    };
    signs.iter().map(character).collect()
}

/// As the drive takes a pattern.
fn with_escapes(signs: &[PatternSign]) -> String {
    let mut text = String::new();
    for sign in signs {
        match sign {
            PatternSign::Many => text.push('%'),
            PatternSign::One => text.push('_'),
            PatternSign::Is(character) => {
                if matches!(character, '%' | '_' | '\\') {
                    text.push('\\');
                }
                text.push(*character);
            }
        }
    }
    text
}
