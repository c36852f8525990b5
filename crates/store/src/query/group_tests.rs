//! Aggregates, groups and distinct rows, over the papers of the other tests.

use super::tests::{BASE, FORMAT, compiled, int, rows, text};
use super::{QueryProblem, QueryText, compile};
use tapetum_kernels::scan::{Format, OwnedScalar};

#[test]
fn aggregates_and_groups_are_those_of_sql() {
    let whole =
        QueryText { select: "count(*), count(pages), sum(pages) as s, avg(year), min(venue)", ..QueryText::default() };
    let average = Some(OwnedScalar::Float(12030.0 / 6.0));
    assert_eq!(rows(&whole), [[int(6), int(4), int(25), average, text("")]]);
    let grouped = QueryText {
        condition: Some("year <= 2000"),
        select: "max(id) as last, year, count(*)",
        group_by: Some("year"),
        order_by: Some("last desc"),
        limit: Some(1),
        ..QueryText::default()
    };
    assert_eq!(rows(&grouped), [[int(3), int(2000), int(2)]]);
    let order = compiled(&grouped).group_order;
    assert_eq!((order.by, order.limit), (Some((1, true)), Some(1)));
    let computed = QueryText { select: "year / 10, count(*)", group_by: Some("year / 10"), ..QueryText::default() };
    assert_eq!(rows(&computed), [[int(199), int(1)], [int(200), int(3)], [int(201), int(1)], [int(202), int(1)]]);
}

#[test]
fn a_group_is_named_as_a_column_is() {
    let by = |select, group_by| {
        rows(&QueryText { select, group_by: Some(group_by), order_by: Some("2 desc"), limit: Some(1), ..BASE })
    };
    let most = [[int(200), int(3)]];
    assert_eq!(by("year / 10 as decade, count(*)", "decade"), most);
    assert_eq!(by("year / 10 as \"the decade\", count(*)", "(\"the decade\")"), most);
    assert_eq!(by("year / 10, count(*)", "1"), most);
    // A field wins over a name.
    assert_eq!(by("year as score, count(*)", "year"), [[int(2000), int(2)]]);
    let format = Format::parse(FORMAT).unwrap();
    let problem = |select, group_by| {
        let query = QueryText { select, group_by: Some(group_by), ..BASE };
        compile(&format, &query).map(|_| ()).unwrap_err().problem
    };
    assert_eq!(problem("year / 10 as year, count(*)", "year"), QueryProblem::NotGrouped);
    assert_eq!(problem("id as x, year as x", "x"), QueryProblem::NameOfTwo);
    for group_by in ["n", "2", "3"] {
        assert!(matches!(problem("year, count(*) as n", group_by), QueryProblem::Unsupported(_)), "{group_by}");
    }
}

#[test]
fn distinct_rows_come_once() {
    let distinct = |select, order_by, limit| rows(&QueryText { select, order_by, limit, ..BASE });
    let venues = distinct("distinct venue", Some("venue"), None);
    assert_eq!(venues, [[text("")], [text("SIGMOD")], [text("VLDB")], [text("VLDB Journal")], [text("it's")]]);
    let of_years = distinct("distinct year as y, year / 1000 as k, year", Some("y desc"), Some(2));
    assert_eq!(of_years, [[int(2020), int(2), int(2020)], [int(2010), int(2), int(2010)]]);
    assert_eq!(distinct("DISTINCT pages is null", Some("1"), None).len(), 2);
    assert_eq!(distinct("distinct 7", None, None), [[int(7)]]);
    assert_eq!(distinct("distinct id", None, Some(4)).len(), 4);
    let format = Format::parse("key: distinct u32be").unwrap();
    assert!(compile(&format, &QueryText { select: "distinct", ..BASE }).is_ok());
    assert!(compile(&format, &QueryText { select: "distinct, distinct + 1", ..BASE }).is_ok());
}

#[test]
fn having_keeps_groups() {
    let having = |select, having| {
        let grouped = QueryText { select, group_by: Some("year"), having: Some(having), order_by: Some("1"), ..BASE };
        let year = |row: &Vec<Option<OwnedScalar>>| row[0].clone().unwrap();
        rows(&grouped).iter().map(year).map(|year| year.as_scalar().integer().unwrap()).collect::<Vec<i128>>()
    };
    for (condition, years) in [
        ("count(*) > 1", &[2000][..]),
        ("papers > 1", &[2000]),
        ("papers = 1 and y < 2005", &[1999, 2001]),
        ("year between 2000 and 2001", &[2000, 2001]),
        ("\"year\" = 1999 or max(score) > 8", &[1999, 2020]),
        ("sum(pages) + 1 = 13", &[1999]),
        ("sum(pages) is null", &[2001]),
        ("not sum(pages) > 3", &[2010, 2020]),
        ("min(venue) like '%OD'", &[2000]),
        ("min(venue) in ('', 'it''s')", &[2010, 2020]),
        ("avg(score) < 0.25 and avg(score) > -1", &[2000, 2010]),
        ("min(at) >= '1970-01-06'", &[2010, 2020]),
        ("(year) % 2 = 1 and (papers) = count(*)", &[1999, 2001]),
        ("null", &[]),
    ] {
        assert_eq!(having("year as y, count(*) as papers", condition), years, "{condition}");
    }
    let decades = QueryText {
        select: "year / 10 as decade, count(*)",
        group_by: Some("decade"),
        having: Some("year / 10 * 10 < 2010 and decade > 199"),
        ..BASE
    };
    assert_eq!(rows(&decades), [[int(200), int(3)]]);
    let limited = QueryText {
        select: "year",
        group_by: Some("year"),
        having: Some("count(*) = 1"),
        order_by: Some("year desc"),
        limit: Some(2),
        ..BASE
    };
    assert_eq!(rows(&limited), [[int(2020)], [int(2010)]]);
    let whole = |having| rows(&QueryText { select: "count(*)", having: Some(having), ..BASE }).len();
    assert_eq!((whole("max(id) > 5"), whole("max(id) > 6")), (1, 0));
    let distinct = QueryText { select: "distinct year", having: Some("year > 2005"), order_by: Some("1"), ..BASE };
    assert_eq!(rows(&distinct), [[int(2010)], [int(2020)]]);
}

#[test]
fn distinct_values_are_counted() {
    let counted = |select, group_by, having, order_by, limit| {
        rows(&QueryText { select, group_by, having, order_by, limit, ..BASE })
    };
    let whole = "count(distinct venue), count(distinct year) as years, count(venue), count(distinct pages), avg(pages)";
    assert_eq!(
        counted(whole, None, None, None, None),
        [[int(5), int(5), int(6), int(4), Some(OwnedScalar::Float(6.25))]]
    );
    let of_nothing = QueryText { condition: Some("id > 6"), select: "count(distinct id), max(distinct id)", ..BASE };
    assert_eq!(rows(&of_nothing), [[int(0), None]]);
    assert_eq!(
        counted("count(distinct pages > 5), count(distinct 7), count(distinct null)", None, None, None, None),
        [[int(2), int(1), int(0)]]
    );
    let by_shape = counted(
        "venue like 'VLDB%' as v, count(distinct venue) as venues, count(distinct id % 2), min(distinct id)",
        Some("v"),
        None,
        Some("venues desc"),
        None,
    );
    let is = |value| Some(OwnedScalar::Bool(value));
    assert_eq!(by_shape, [[is(false), int(3), int(2), int(3)], [is(true), int(2), int(2), int(1)]]);
    let having = Some("count(distinct venue) > 1");
    assert_eq!(counted("year", Some("year"), having, Some("1"), None), [[int(2000)]]);
    let last =
        counted("year", Some("year"), Some("count(DISTINCT id) = 1 and year > 2000"), Some("year desc"), Some(1));
    assert_eq!(last, [[int(2020)]]);
    let ordered = counted("year, count(distinct id)", Some("year"), None, Some("count(distinct id) desc"), Some(1));
    assert_eq!(ordered, [[int(2000), int(2)]]);
}
