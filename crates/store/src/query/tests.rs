use super::{Clause, CompiledQuery, OrderedRows, QueryProblem, QueryText, compile};
use tapetum_kernels::scan::query::MisfitPolicy;
use tapetum_kernels::scan::{Format, OwnedScalar, QueryResult, QueryRun, RowBatch, Scalar, ScalarType};

pub(super) const FORMAT: &str = "key: id u32be; value: year u16le, score f64le, hash u64le, open bool, at seconds32le, venue string8, \
                      raw bytes8, pages u16le?";

pub(super) const BASE: QueryText<'_> = QueryText {
    condition: None,
    select: "*",
    group_by: None,
    having: None,
    order_by: None,
    limit: None,
    policy: MisfitPolicy::Fail,
};

struct Paper {
    id: u32,
    year: u16,
    score: f64,
    venue: &'static str,
    pages: Option<u16>,
}

const PAPERS: [Paper; 6] = [
    Paper { id: 1, year: 1999, score: 0.5, venue: "VLDB", pages: Some(12) },
    Paper { id: 2, year: 2000, score: 1.5, venue: "VLDB", pages: None },
    Paper { id: 3, year: 2000, score: -2.0, venue: "SIGMOD", pages: Some(10) },
    Paper { id: 4, year: 2001, score: 4.0, venue: "VLDB Journal", pages: None },
    Paper { id: 5, year: 2010, score: 0.0, venue: "", pages: Some(3) },
    Paper { id: 6, year: 2020, score: 8.25, venue: "it's", pages: Some(0) },
];

fn batch() -> RowBatch {
    let mut batch = RowBatch::new();
    for paper in &PAPERS {
        let mut value = paper.year.to_le_bytes().to_vec();
        value.extend_from_slice(&paper.score.to_le_bytes());
        value.extend_from_slice(&(u64::MAX - u64::from(paper.id)).to_le_bytes());
        value.push(u8::from(paper.id % 2 == 0));
        value.extend_from_slice(&(paper.id * 86_400).to_le_bytes());
        value.push(paper.venue.len() as u8);
        value.extend_from_slice(paper.venue.as_bytes());
        value.extend_from_slice(&[2, 0xff, paper.id as u8]);
        paper.pages.iter().for_each(|pages| value.extend_from_slice(&pages.to_le_bytes()));
        batch.push(&paper.id.to_be_bytes(), &value);
    }
    batch
}

pub(super) fn compiled(text: &QueryText<'_>) -> CompiledQuery {
    let format = Format::parse(FORMAT).unwrap();
    compile(&format, text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

pub(super) fn rows(text: &QueryText<'_>) -> Vec<Vec<Option<OwnedScalar>>> {
    run(compiled(text), &batch())
}

/// The rows that a query makes of a batch.
pub(super) fn run(compiled: CompiledQuery, batch: &RowBatch) -> Vec<Vec<Option<OwnedScalar>>> {
    let CompiledQuery { query, columns, group_order } = compiled;
    let (mut run, mut frames, mut rows) = (QueryRun::new(&query), Vec::new(), Vec::new());
    run.run(batch, &mut frames).unwrap();
    run.finish(&mut frames);
    let mut show = |values: &[Option<Scalar<'_>>]| {
        rows.push(columns.iter().map(|column| values[column.place].map(Scalar::to_owned)).collect());
    };
    let (mut result, mut ordered) = (QueryResult::new(&query), OrderedRows::new(group_order));
    result.merge(&frames, &mut |row: &[Option<Scalar<'_>>]| ordered.push(row, &mut show)).unwrap();
    result.finish(&mut |row: &[Option<Scalar<'_>>]| ordered.push(row, &mut show));
    ordered.finish(&mut show);
    rows
}

/// The papers for which a condition is true, by their ids.
fn kept(condition: &str) -> Vec<i64> {
    let text = QueryText { condition: Some(condition), select: "id", ..QueryText::default() };
    let id = |row: &Vec<Option<OwnedScalar>>| match row[..] {
        [Some(OwnedScalar::Int(id))] => id,
        ref other => panic!("{other:?}"),
    };
    rows(&text).iter().map(id).collect()
}

#[test]
fn conditions_keep_what_sql_keeps() {
    for (condition, expected) in [
        ("year = 2000", &[2, 3][..]),
        ("2000 = year and venue = 'VLDB'", &[2]),
        ("(year = 2000) and (venue = 'VLDB' or score < 0)", &[2, 3]),
        ("year <> 2000", &[1, 4, 5, 6]),
        ("year between 2000 and 2001", &[2, 3, 4]),
        ("year not between 2000 and 2010", &[1, 6]),
        ("year in (1999, 2010, 7)", &[1, 5]),
        ("year not in (1999, 2010)", &[2, 3, 4, 6]),
        ("year in (2000.0, 1999)", &[1, 2, 3]),
        ("id in (year - 1998, 6)", &[1, 2, 6]),
        ("pages in (12, null)", &[1]),
        ("pages not in (12, null)", &[]),
        ("venue like 'VLDB%'", &[1, 2, 4]),
        ("venue not like 'VLDB%'", &[3, 5, 6]),
        ("venue like 'VLDB'", &[1, 2]),
        ("venue like '%LDB%'", &[1, 2, 4]),
        ("venue not like '%LDB%'", &[3, 5, 6]),
        ("not venue like '%LDB%'", &[3, 5, 6]),
        ("venue like '%DB'", &[1, 2]),
        ("venue like '_____'", &[]),
        ("venue like '____'", &[1, 2, 6]),
        ("venue like '%_J%n_l'", &[4]),
        ("venue like 'it''_'", &[6]),
        (r"venue like 'V\LDB%'", &[1, 2, 4]),
        (r"venue like '%\_%'", &[]),
        ("venue like '%!_%' escape '!'", &[]),
        ("venue like 'V!LDB!%' escape '!'", &[]),
        (r"venue like 'V\%' escape ''", &[]),
        ("venue like '%'", &[1, 2, 3, 4, 5, 6]),
        ("(venue like '%') is null", &[]),
        ("raw like '_%'", &[1, 2, 3, 4, 5, 6]),
        ("raw like '__'", &[1, 2, 3, 4, 5, 6]),
        ("raw like '___'", &[]),
        ("venue = 'it''s'", &[6]),
        ("pages is null", &[2, 4]),
        ("pages is not null and not pages > 5", &[5, 6]),
        ("pages > 5", &[1, 3]),
        ("not (pages > 5)", &[5, 6]),
        ("(pages > 5) is not true", &[2, 4, 5, 6]),
        ("(pages > 5) is false", &[5, 6]),
        ("pages > 5 or year = 2001", &[1, 3, 4]),
        ("100 / pages > 8", &[3, 5]),
        ("(100 / pages) is null", &[2, 4, 6]),
        ("year % 2 = 1", &[1, 4]),
        ("score < float 'inf' and score > float '-inf' and score <> float 'NaN'", &[1, 2, 3, 4, 5, 6]),
        ("year < float 'nan' and id <= float '2.5'", &[1, 2]),
        ("at < timestamp '9223372036854775807' and at > '-9223372036854775808' and id = 1", &[1]),
        ("(venue like null) is null and (null like 'x%') is null and (null + null) is null", &[1, 2, 3, 4, 5, 6]),
        ("year * 2 + 1 = 4001", &[2, 3]),
        ("-id < -4", &[5, 6]),
        ("score > 1", &[2, 4, 6]),
        ("score = id - 0.5", &[1, 2]),
        ("year > 2000.5", &[4, 5, 6]),
        ("score * 2 = 3", &[2]),
        ("hash = 18446744073709551614", &[1]),
        ("hash > 18446744073709551610 and hash <> -1", &[1, 2, 3, 4]),
        ("hash > id", &[1, 2, 3, 4, 5, 6]),
        ("open", &[2, 4, 6]),
        ("not open and true", &[1, 3, 5]),
        ("open = false", &[1, 3, 5]),
        ("at >= '1970-01-05'", &[4, 5, 6]),
        ("at = timestamp '1970-01-03 00:00:00'", &[2]),
        ("at < date '1970-01-03'", &[1]),
        ("raw = X'ff03'", &[3]),
        ("raw like 'x%'", &[]),
        ("\"year\" = +1999", &[1]),
        ("year = null", &[]),
        ("3 <= null or pages is null", &[2, 4]),
        ("(3 <= null) is null and (null in (2.5)) is null and (2 between null and 3) is null", &[1, 2, 3, 4, 5, 6]),
        ("null is null", &[1, 2, 3, 4, 5, 6]),
        ("1 = 2", &[]),
        ("'a' < 'b'", &[1, 2, 3, 4, 5, 6]),
    ] {
        assert_eq!(kept(condition), expected, "{condition}");
    }
}

pub(super) fn int(value: i64) -> Option<OwnedScalar> {
    Some(OwnedScalar::Int(value))
}

pub(super) fn text(value: &str) -> Option<OwnedScalar> {
    Some(OwnedScalar::Text(value.into()))
}

#[test]
fn columns_have_names_and_types() {
    let query = compiled(&QueryText { select: "venue as v, id + 1, score", ..QueryText::default() });
    let columns: Vec<_> = query.columns.iter().map(|column| (&column.name[..], column.scalar_type)).collect();
    assert_eq!(columns, [("v", ScalarType::Text), ("id + 1", ScalarType::Int), ("score", ScalarType::Float)]);
    let all = compiled(&QueryText::default());
    let names: Vec<_> = all.columns.iter().map(|column| &column.name[..]).collect();
    assert_eq!(names, ["id", "year", "score", "hash", "open", "at", "venue", "raw", "pages"]);
    let of = QueryText { condition: Some("id = 2"), select: "pages, year, id, pages", ..QueryText::default() };
    assert_eq!(rows(&of), [[None, int(2000), int(2), None]]);
}

#[test]
fn rows_are_ordered_within_their_limit() {
    let ordered = QueryText { select: "id", order_by: Some("score desc"), limit: Some(3), ..QueryText::default() };
    assert_eq!(rows(&ordered), [[int(6)], [int(4)], [int(2)]]);
    let by_pages = QueryText { select: "id", order_by: Some("pages"), limit: Some(5), ..QueryText::default() };
    assert_eq!(rows(&by_pages), [[int(6)], [int(5)], [int(3)], [int(1)], [int(2)]]);
}

#[test]
fn an_order_is_by_a_column_where_its_place_or_name_is_given() {
    let by = |order_by| {
        let query = QueryText { select: "id, score", order_by: Some(order_by), limit: Some(2), ..QueryText::default() };
        rows(&query).into_iter().map(|row| row[0].clone()).collect::<Vec<_>>()
    };
    let last = [int(6), int(4)];
    assert_eq!(by("2 desc"), last);
    assert_eq!(by("(2) desc"), last);
    assert_eq!(by("1"), [int(1), int(2)]);
    // A name that is given wins over a field; in an expression it is the field.
    let named = |order_by| {
        let query =
            QueryText { select: "id, -id as year", order_by: Some(order_by), limit: Some(1), ..QueryText::default() };
        rows(&query)[0][0].clone()
    };
    assert_eq!((named("year"), named("\"year\""), named("year + 0")), (int(6), int(6), int(1)));
    let groups = |select, order_by| {
        let query = QueryText {
            select,
            group_by: Some("year"),
            order_by: Some(order_by),
            limit: Some(1),
            ..QueryText::default()
        };
        compiled(&query).group_order.by
    };
    assert_eq!(groups("year, count(*)", "2 desc"), Some((1, true)));
    assert_eq!(groups("year as y, count(*) as year", "year"), Some((1, false)));
    assert_eq!(groups("year as y, count(*) as \"n\"", "\"n\""), Some((1, false)));
}

#[test]
fn an_order_by_a_constant_is_refused() {
    let format = Format::parse(FORMAT).unwrap();
    let problem = |text: &QueryText<'_>| compile(&format, text).map(|_| ()).unwrap_err().problem;
    for order_by in ["0", "3", "-1", "'id' desc", "1.5", "null", "1 + 1", "99999999999999999999", "(1 = 1) is true"] {
        let query = QueryText { select: "id, year", order_by: Some(order_by), limit: Some(1), ..QueryText::default() };
        assert_eq!(problem(&query), QueryProblem::OrderConstant(2), "{order_by}");
    }
    let twice = QueryText { select: "id as x, year as x", order_by: Some("x"), limit: Some(1), ..QueryText::default() };
    assert_eq!(problem(&twice), QueryProblem::OrderByTwo);
    for group_by in ["2", "1 + 1"] {
        let query = QueryText { select: "count(*)", group_by: Some(group_by), ..QueryText::default() };
        assert!(matches!(problem(&query), QueryProblem::Unsupported(_)), "{group_by}");
    }
}

#[test]
fn a_limit_of_none_gives_no_rows() {
    for order_by in [None, Some("id")] {
        let none = QueryText { select: "id", order_by, limit: Some(0), ..QueryText::default() };
        assert_eq!(rows(&none), Vec::<Vec<_>>::new());
    }
}

#[test]
fn an_error_points_at_the_word() {
    let format = Format::parse(FORMAT).unwrap();
    let unknown = QueryProblem::unknown_field(&format);
    for (condition, column, word, problem) in [
        ("yaer = 2000", 1, "yaer", Some(unknown.clone())),
        ("year = 2000 and venu = 'x'", 17, "venu", Some(unknown)),
        ("year = 'x'", 8, "'x'", Some(QueryProblem::Types("integer", "string"))),
        ("venue = 5", 9, "5", Some(QueryProblem::Types("string", "integer"))),
        ("venue = year", 9, "year", Some(QueryProblem::Types("string", "integer"))),
        ("year", 1, "year", Some(QueryProblem::NotCondition("integer"))),
        ("open or year", 9, "year", Some(QueryProblem::NotCondition("integer"))),
        ("venue + 1 = 2", 9, "1", Some(QueryProblem::Types("string", "integer"))),
        ("venue * venue = 'x'", 1, "venue", Some(QueryProblem::NotNumber("string"))),
        ("year like 'x%'", 1, "year", Some(QueryProblem::NotText("integer"))),
        ("venue like 5", 12, "5", Some(QueryProblem::Pattern)),
        ("venue like venue", 12, "venue", Some(QueryProblem::Pattern)),
        (r"venue like 'a\'", 12, r"'a\'", Some(QueryProblem::PatternEnd)),
        ("venue like 'a' escape '!!'", 23, "'!!'", Some(QueryProblem::EscapeCharacter)),
        ("venue like 'a' escape 1", 23, "1", Some(QueryProblem::EscapeCharacter)),
        ("venue ilike 'a'", 1, "venue", None),
        ("cast(score as decimal(10,2)) = 1", 6, "score", None),
        ("at > '2000'", 6, "'2000'", Some(QueryProblem::Timestamp)),
        ("at > 2000", 6, "2000", Some(QueryProblem::Timestamp)),
        ("score > float 'x'", 15, "'x'", Some(QueryProblem::Float)),
        ("raw = X'abc'", 7, "X", Some(QueryProblem::HexBytes)),
        ("id = 99999999999999999999", 6, "99999999999999999999", Some(QueryProblem::Number)),
        ("count(*) = 1", 1, "count", Some(QueryProblem::Aggregate)),
        ("upper(venue) = 'X'", 1, "upper", None),
        ("year = ", 8, "", None),
        ("year = = 3", 8, "=", None),
        ("year = 3 4", 10, "4", None),
        ("year = 'x", 8, "'x", None),
        ("year in ()", 10, ")", None),
        ("year in (select 1)", 1, "year", None),
    ] {
        let error = compile(&format, &QueryText { condition: Some(condition), ..QueryText::default() });
        let error = error.map(|_| condition).unwrap_err();
        assert_eq!(
            (error.clause, error.column, &error.word[..]),
            (Clause::Where, column, word),
            "{condition}: {error}"
        );
        assert!(problem.is_none_or(|problem| error.problem == problem), "{condition}: {error}");
    }
}

#[test]
fn each_clause_has_errors_of_its_own() {
    let format = Format::parse(FORMAT).unwrap();
    let base = QueryText::default();
    for (text, clause, column, problem) in [
        (QueryText { select: "count(*), id", ..base }, Clause::Select, 11, QueryProblem::NotGrouped),
        (QueryText { select: "sum(venue)", ..base }, Clause::Select, 5, QueryProblem::AggregateArgument("string")),
        (QueryText { select: "sum(id) + 1", ..base }, Clause::Select, 1, QueryProblem::Aggregate),
        (QueryText { select: "sum(distinct year)", ..base }, Clause::Select, 1, QueryProblem::DistinctAggregate),
        (
            QueryText { select: "count(*)", having: Some("count(*) > 1 and year > 2000"), ..base },
            Clause::Having,
            18,
            QueryProblem::NotOfGroups,
        ),
        (
            QueryText { select: "count(*)", having: Some("yaer > 2000"), ..base },
            Clause::Having,
            1,
            QueryProblem::unknown_field(&format),
        ),
        (
            QueryText { select: "count(*)", having: Some("count(*)"), ..base },
            Clause::Having,
            1,
            QueryProblem::NotCondition("integer"),
        ),
        (QueryText { select: "id", having: Some("id > 1"), ..base }, Clause::Select, 1, QueryProblem::NotGrouped),
        (
            QueryText { select: "id", order_by: Some("id"), ..base },
            Clause::OrderBy,
            1,
            QueryProblem::OrderNeedsLimit(1 << 16),
        ),
        (
            QueryText { select: "id", order_by: Some("id, year"), limit: Some(1), ..base },
            Clause::OrderBy,
            5,
            QueryProblem::OneOrder,
        ),
        (
            QueryText { select: "count(*)", order_by: Some("id"), ..base },
            Clause::OrderBy,
            1,
            QueryProblem::OrderOfGroups,
        ),
    ] {
        let error = compile(&format, &text).map(|_| text).unwrap_err();
        assert_eq!((error.clause, error.column, &error.problem), (clause, column, &problem), "{text:?}: {error}");
    }
    let error = compile(&format, &QueryText { select: "yera", ..base }).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "select, column 1, yera: the format has no such field; year is one");
    for select in ["count()", "count(id, year)", "sum(*)", "min()", "count(distinct id, year)", "count(distinct *)"] {
        let error = compile(&format, &QueryText { select, ..base }).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.ends_with("an aggregate takes one argument, as sum(field) does, and count also takes *: count(*)"),
            "{error}"
        );
    }
    for condition in ["open is 1", "id is not 'x'"] {
        let text = QueryText { condition: Some(condition), ..base };
        let error = compile(&format, &text).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.ends_with("is and is not take null, true or false: compare with other values by = or <>"),
            "{error}"
        );
    }
}

#[test]
fn long_texts_are_refused_and_never_overflow_the_stack() {
    let format = Format::parse(FORMAT).unwrap();
    let refused = |condition: &str| {
        compile(&format, &QueryText { condition: Some(condition), ..QueryText::default() })
            .map(|_| ())
            .unwrap_err()
            .problem
    };
    assert_eq!(refused(&format!("open{}", " and open".repeat(5000))), QueryProblem::TooLong);
    assert_eq!(refused(&format!("venue like '%{}%'", "x".repeat(2000))), QueryProblem::PatternTooLong(1024));
    assert_eq!(refused(&"x".repeat(super::CLAUSE_BYTES_MAX + 1)), QueryProblem::TooLong);
    assert_eq!(refused(&format!("{}open{}", "(".repeat(300), ")".repeat(300))), QueryProblem::TooDeep);
    assert!(matches!(refused(&format!("{}open", "not ".repeat(500))), QueryProblem::Syntax(_)));
    assert_eq!(
        refused(&format!("id = 0{}", (0..300).map(|n| format!("+{n}")).collect::<String>())),
        QueryProblem::TooManyInstructions
    );
    for chain in [" or open".repeat(200), " and open".repeat(500)] {
        assert_eq!(kept(&format!("open{chain}")), [2, 4, 6]);
    }
    let list = (0..400).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(kept(&format!("id in ({list})")), [1, 2, 3, 4, 5, 6]);
}
