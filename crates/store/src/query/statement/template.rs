//! The clauses of a statement as texts in which values are put in the place of parameters.

use super::super::literals::literal_text;
use super::super::{CLAUSE_BYTES_MAX, Clause, parse};
use super::clauses::{Clauses, StatementClause};
use super::from::Scope;
use super::pieces::{Piece, Pieces};
use super::{StatementError, StatementProblem, StatementWords};
use sqlparser::ast::SelectItem;
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::Token;
use tapetum_kernels::scan::OwnedScalar;

const ROW_COUNT: &str = "limit takes a number of rows: limit 10, limit ? or fetch first 10 rows only";
const NO_OFFSET: &str =
    "there is no offset but 0: go on behind the last row with a condition, such as where id > 100 order by id limit 10";
const SAME_FOR_ALL: &str = "a parameter is the same for all records: group and order by a field, by what is computed of one, or by a column's name";

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Template {
    select: ClauseTemplate,
    condition: Option<ClauseTemplate>,
    group_by: Option<ClauseTemplate>,
    having: Option<ClauseTemplate>,
    order_by: Option<ClauseTemplate>,
    limit: RowCount,
    offset: RowCount,
}

#[derive(Clone, PartialEq, Debug, Default)]
struct ClauseTemplate {
    parts: Vec<TemplatePart>,
}

#[derive(Clone, PartialEq, Debug)]
enum TemplatePart {
    Text(String),
    Parameter(ParameterPlace),
}

#[derive(Clone, PartialEq, Debug)]
struct ParameterPlace {
    /// From 0 on.
    number: usize,
    written: Box<str>,
    /// For errors: see [`StatementError`].
    column: usize,
}

#[derive(Clone, PartialEq, Debug)]
enum RowCount {
    Absent,
    Rows(u64),
    Parameter(ParameterPlace),
}

/// The texts in the place of the parameters.
#[derive(Clone, Copy)]
pub(super) enum Filling<'v> {
    /// Their own text.
    Written,
    Nulls,
    /// One for each.
    Values(&'v [Option<OwnedScalar>]),
}

impl Template {
    pub fn of(pieces: &Pieces<'_>, clauses: &Clauses<'_, '_>, scope: &Scope) -> Result<Template, StatementError> {
        let found = |clause| clauses.find(clause);
        let template = |clause| found(clause).map(|found| ClauseTemplate::of(pieces, found, scope)).transpose();
        for clause in [StatementClause::GroupBy, StatementClause::OrderBy] {
            let mut items = found(clause).map(|found| items(found)).unwrap_or_default().into_iter();
            if let Some(parameter) = items.find_map(lone_parameter) {
                return Err(pieces.malformed(parameter, SAME_FOR_ALL));
            }
        }
        let offset = match found(StatementClause::Offset) {
            Some([count]) => RowCount::of(pieces, count)?,
            Some([count, rows]) if is_rows(rows) => RowCount::of(pieces, count)?,
            Some([.., last]) => return Err(pieces.malformed(last, ROW_COUNT)),
            Some([]) => return Err(StatementError::whole(StatementProblem::Malformed(ROW_COUNT))),
            None => RowCount::Absent,
        };
        if let (RowCount::Rows(1..), Some([count, ..])) = (&offset, found(StatementClause::Offset)) {
            return Err(pieces.refused(count, NO_OFFSET));
        }
        Ok(Template {
            select: selected(pieces, found(StatementClause::Select).unwrap_or_default(), scope)?,
            condition: template(StatementClause::Where)?,
            group_by: template(StatementClause::GroupBy)?,
            having: template(StatementClause::Having)?,
            order_by: template(StatementClause::OrderBy)?,
            limit: limit(pieces, clauses)?,
            offset,
        })
    }

    pub fn words(&self, filling: Filling<'_>) -> Result<StatementWords, StatementError> {
        let filled = |clause: &Option<ClauseTemplate>| clause.as_ref().map(|clause| clause.filled(filling)).transpose();
        if let (Some(1..), RowCount::Parameter(place)) = (self.offset.filled(filling)?, &self.offset) {
            return Err(place.error(StatementProblem::Refused(NO_OFFSET)));
        }
        Ok(StatementWords {
            condition: filled(&self.condition)?,
            select: self.select.filled(filling)?,
            group_by: filled(&self.group_by)?,
            having: filled(&self.having)?,
            order_by: filled(&self.order_by)?,
            limit: self.limit.filled(filling)?,
        })
    }
}

impl ClauseTemplate {
    /// Comments and white space become a space, and fields lose their qualifiers.
    fn of(pieces: &Pieces<'_>, clause: &[Piece<'_>], scope: &Scope) -> Result<ClauseTemplate, StatementError> {
        let mut template = ClauseTemplate::default();
        let mut rest = clause;
        while let [first, behind @ ..] = rest {
            rest = behind;
            if first.is_apart && !template.parts.is_empty() {
                template.push(" ");
            }
            if let Some(place) = ParameterPlace::of(first) {
                template.parts.push(TemplatePart::Parameter(place));
                continue;
            }
            let (mut qualifier, mut last) = (Vec::new(), first);
            while let [period, part, behind @ ..] = rest
                && last.name().is_some()
                && period.token == Token::Period
                && (part.name().is_some() || part.token == Token::Mul)
            {
                qualifier.push(last);
                (last, rest) = (part, behind);
            }
            if !qualifier.is_empty() && !scope.is_meant_by(&qualifier) {
                return Err(pieces.error(first.span, StatementProblem::Qualifier(scope.keyspace.clone())));
            }
            template.push(last.text);
        }
        Ok(template)
    }

    fn push(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(TemplatePart::Text(last)) => last.push_str(text),
            _ => self.parts.push(TemplatePart::Text(text.into())),
        }
    }

    fn has_parameters(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, TemplatePart::Parameter(_)))
    }

    fn filled(&self, filling: Filling<'_>) -> Result<String, StatementError> {
        let mut filled = String::new();
        for part in &self.parts {
            let (text, place) = match part {
                TemplatePart::Text(text) => {
                    // A value is a word of its own.
                    let stands_apart = text.starts_with([' ', ',', ')']) || filled.is_empty();
                    if !stands_apart && !matches!(filling, Filling::Written) {
                        filled.push(' ');
                    }
                    filled.push_str(text);
                    continue;
                }
                TemplatePart::Parameter(place) => match filling {
                    Filling::Written => (String::from(&*place.written), place),
                    Filling::Nulls => (literal_text(None), place),
                    Filling::Values(values) => {
                        (literal_text(values[place.number].as_ref().map(OwnedScalar::as_scalar)), place)
                    }
                },
            };
            if !matches!(filling, Filling::Written) && !filled.is_empty() && !filled.ends_with([' ', '(', ',']) {
                filled.push(' ');
            }
            filled.push_str(&text);
            if matches!(filling, Filling::Values(_)) && filled.len() > CLAUSE_BYTES_MAX {
                return Err(place.error(StatementProblem::ValuesTooLong(CLAUSE_BYTES_MAX)));
            }
        }
        Ok(filled)
    }
}

impl ParameterPlace {
    fn of(piece: &Piece<'_>) -> Option<ParameterPlace> {
        let number = piece.parameter?;
        Some(ParameterPlace { number, written: piece.text.into(), column: piece.column })
    }

    fn error(&self, problem: StatementProblem) -> StatementError {
        StatementError { column: self.column, word: String::from(&*self.written), problem }
    }
}

impl RowCount {
    fn of(pieces: &Pieces<'_>, piece: &Piece<'_>) -> Result<RowCount, StatementError> {
        if let Some(place) = ParameterPlace::of(piece) {
            return Ok(RowCount::Parameter(place));
        }
        match (&piece.token, piece.keyword()) {
            (Token::Number(digits, _), _) => {
                digits.parse().map(RowCount::Rows).map_err(|_| pieces.malformed(piece, ROW_COUNT))
            }
            (_, Keyword::ALL | Keyword::NULL) => Ok(RowCount::Absent),
            _ => Err(pieces.malformed(piece, ROW_COUNT)),
        }
    }

    fn filled(&self, filling: Filling<'_>) -> Result<Option<u64>, StatementError> {
        let place = match self {
            RowCount::Absent => return Ok(None),
            RowCount::Rows(rows) => return Ok(Some(*rows)),
            RowCount::Parameter(place) => place,
        };
        let rows = match filling {
            Filling::Written => return Ok(None),
            Filling::Nulls => return Ok(Some(0)),
            Filling::Values(values) => match &values[place.number] {
                None => return Ok(None),
                Some(value) => value.as_scalar().integer().and_then(|rows| u64::try_from(rows).ok()),
            },
        };
        rows.map(Some).ok_or_else(|| place.error(StatementProblem::Malformed(ROW_COUNT)))
    }
}

/// `limit n`, or `fetch first n rows only`, in which `n` may be missing for 1.
fn limit(pieces: &Pieces<'_>, clauses: &Clauses<'_, '_>) -> Result<RowCount, StatementError> {
    match (clauses.find(StatementClause::Limit), clauses.find(StatementClause::Fetch)) {
        (None, None) => Ok(RowCount::Absent),
        (Some([count]), None) => RowCount::of(pieces, count),
        (None, Some([count @ .., rows, only]))
            if count.len() < 2 && is_rows(rows) && only.keyword() == Keyword::ONLY =>
        {
            count.first().map_or(Ok(RowCount::Rows(1)), |count| RowCount::of(pieces, count))
        }
        (Some([.., last]), _) | (_, Some([.., last])) => Err(pieces.malformed(last, ROW_COUNT)),
        _ => Err(StatementError::whole(StatementProblem::Malformed(ROW_COUNT))),
    }
}

fn is_rows(piece: &Piece<'_>) -> bool {
    matches!(piece.keyword(), Keyword::ROW | Keyword::ROWS)
}

/// The selected columns. One that is computed from parameters gets its text as its name, which values would change.
fn selected(pieces: &Pieces<'_>, clause: &[Piece<'_>], scope: &Scope) -> Result<ClauseTemplate, StatementError> {
    let (quantifier, clause) = quantified(clause);
    let of = |item: &[Piece<'_>]| ClauseTemplate::of(pieces, item, scope);
    let mut templates = items(clause).into_iter().map(of).collect::<Result<Vec<_>, StatementError>>()?;
    if templates.iter().any(ClauseTemplate::has_parameters) {
        let unbound: Result<Vec<String>, _> = templates.iter().map(|item| item.filled(Filling::Nulls)).collect();
        // A text that does not parse is refused when it is compiled.
        let trees = parse::select_items(Clause::Select, &unbound?.join(", ")).map_or(Vec::new(), |(_, trees)| trees);
        for (item, tree) in templates.iter_mut().zip(&trees) {
            if item.has_parameters() && matches!(tree, SelectItem::UnnamedExpr(_)) {
                let name = item.filled(Filling::Written)?.replace('"', "\"\"");
                item.push(&format!(" as \"{name}\""));
            }
        }
    }
    let mut template = ClauseTemplate::default();
    template.push(quantifier);
    for (place, item) in templates.into_iter().enumerate() {
        if place > 0 {
            template.push(", ");
        }
        for part in item.parts {
            match part {
                TemplatePart::Text(text) => template.push(&text),
                parameter @ TemplatePart::Parameter(_) => template.parts.push(parameter),
            }
        }
    }
    Ok(template)
}

/// Splits `distinct` off, and `all`, unless they are names of fields.
fn quantified<'p, 'a>(clause: &'p [Piece<'a>]) -> (&'static str, &'p [Piece<'a>]) {
    match clause {
        [first, second, ..] if second.token != Token::Comma => match first.keyword() {
            Keyword::DISTINCT => ("distinct ", &clause[1..]),
            Keyword::ALL => ("", &clause[1..]),
            _ => ("", clause),
        },
        _ => ("", clause),
    }
}

/// The texts between the commas that no parentheses enclose.
fn items<'p, 'a>(clause: &'p [Piece<'a>]) -> Vec<&'p [Piece<'a>]> {
    let mut depth = 0usize;
    let is_between = |piece: &Piece<'_>| {
        match piece.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && piece.token == Token::Comma
    };
    clause.split(is_between).collect()
}

/// The parameter that is all of an item, whatever its parentheses and its direction are.
fn lone_parameter<'p, 'a>(item: &'p [Piece<'a>]) -> Option<&'p Piece<'a>> {
    let is_part = |piece: &&Piece<'_>| {
        let is_parenthesis = matches!(piece.token, Token::LParen | Token::RParen);
        let is_direction =
            matches!(piece.keyword(), Keyword::ASC | Keyword::DESC | Keyword::NULLS | Keyword::FIRST | Keyword::LAST);
        !is_parenthesis && !is_direction
    };
    let mut parts = item.iter().filter(is_part);
    let first = parts.next()?;
    (parts.next().is_none() && first.parameter.is_some()).then_some(first)
}
