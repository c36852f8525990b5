use super::super::tests::{rows, run};
use super::super::{Clause, compile};
use super::*;
use tapetum_kernels::scan::{Format, RowBatch, Scalar};

fn select(sql: &str) -> SelectStatement {
    match Statement::parse(sql) {
        Ok(Statement::Select(select)) => select,
        other => panic!("{sql}: {other:?}"),
    }
}

fn error(sql: &str) -> StatementError {
    Statement::parse(sql).map(|_| sql).unwrap_err()
}

fn text(value: &str) -> Option<OwnedScalar> {
    Some(OwnedScalar::Text(value.into()))
}

fn int(value: i64) -> Option<OwnedScalar> {
    Some(OwnedScalar::Int(value))
}

/// The result of a statement over the papers of the compiler's tests.
fn answered(sql: &str, values: &[Option<OwnedScalar>]) -> Vec<Vec<Option<OwnedScalar>>> {
    let words = select(sql).bind(values).unwrap_or_else(|error| panic!("{sql}: {error}"));
    rows(&words.text(MisfitPolicy::Fail))
}

#[test]
fn a_statement_is_taken_apart() {
    let statement = select(
        "SELECT year, count(*) AS papers -- how many\n FROM tapetum.main.papers AS p /* all /* of */ them */ WHERE p.venue = 'a;--b'\n\
         AND papers.pages>12 GROUP BY main.papers.year HAVING count(*) > 1 ORDER BY papers DESC NULLS LAST LIMIT 10;; ",
    );
    assert_eq!((&statement.keyspace[..], &statement.qualifier[..]), ("papers", &["tapetum".into(), "main".into()][..]));
    let words = StatementWords {
        condition: Some("venue = 'a;--b' AND pages>12".into()),
        select: "year, count(*) AS papers".into(),
        group_by: Some("year".into()),
        having: Some("count(*) > 1".into()),
        order_by: Some("papers DESC NULLS LAST".into()),
        limit: Some(10),
    };
    assert_eq!((&statement.words, statement.parameters), (&words, 0));
    assert_eq!((&statement.bind(&[]).unwrap(), &statement.unbound_words()), (&words, &words));
}

#[test]
fn names_stand_in_quotes_or_not() {
    for (sql, keyspace, of_columns) in [
        ("select * from papers", "papers", "*"),
        ("select p.* from papers p", "papers", "*"),
        (
            "select P.\"Year\", \"my \"\"key\"\"space\".x from \"my \"\"key\"\"space\" as p",
            "my \"key\"space",
            "\"Year\", x",
        ),
        ("select \"from\" , \"limit\" from \"select\"", "select", "\"from\", \"limit\""),
        ("select distinct year from papers", "papers", "distinct year"),
        ("select distinct from papers", "papers", "distinct"),
        ("select all year from papers", "papers", "year"),
        ("select a is distinct from b from papers", "papers", "a is distinct from b"),
        ("select extract(year from at) from papers", "papers", "extract(year from at)"),
        ("select 'é\n日', x from papers", "papers", "'é\n日', x"),
    ] {
        let statement = select(sql);
        assert_eq!((&statement.keyspace[..], &statement.words.select[..]), (keyspace, of_columns), "{sql}");
    }
    let other = error("select q.year from papers p");
    assert_eq!((other.column, &other.problem), (8, &StatementProblem::Qualifier("papers".into())));
}

#[test]
fn a_limit_is_written_in_sqls_ways() {
    for (clauses, limit) in [
        ("", None),
        ("limit 5", Some(5)),
        ("limit all", None),
        ("limit 5 offset 0", Some(5)),
        ("offset 0 rows fetch next 7 rows only", Some(7)),
        ("fetch first row only", Some(1)),
        ("limit 18446744073709551615", Some(u64::MAX)),
    ] {
        assert_eq!(select(&format!("select id from papers {clauses}")).words.limit, limit, "{clauses}");
    }
    for clauses in [
        "limit",
        "limit -1",
        "limit 1.5",
        "limit 1, 2",
        "limit 'x'",
        "limit 18446744073709551616",
        "offset",
        "offset 5",
        "limit 1 limit 2",
        "limit 1 fetch first 1 rows only",
        "fetch first 5 percent rows only",
        "fetch first 5 rows with ties",
    ] {
        error(&format!("select id from papers {clauses}"));
    }
    let statement = select("select id from papers limit $2 offset $1");
    let limit = |values: &[Option<OwnedScalar>]| statement.bind(values).map(|words| words.limit);
    assert_eq!((limit(&[int(0), int(5)]), limit(&[None, Some(OwnedScalar::Unsigned(6))])), (Ok(Some(5)), Ok(Some(6))));
    assert_eq!(limit(&[None, None]), Ok(None));
    assert_eq!((statement.words.limit, statement.unbound_words().limit), (None, Some(0)));
    for values in [[int(1), int(5)], [int(0), int(-5)], [int(0), text("5")]] {
        assert!(limit(&values).is_err(), "{values:?}");
    }
}

#[test]
fn a_select_without_from_is_one_row() {
    let constants = |sql: &str| match Statement::parse(sql) {
        Ok(Statement::Constants(columns)) => columns,
        other => panic!("{sql}: {other:?}"),
    };
    let column = |name: &str, value, of| (String::from(name), value, of);
    assert_eq!(constants("SELECT 1"), [column("1", int(1), ScalarType::Int)]);
    assert_eq!(
        constants("select 1 as one, 'x', 2 * 3 + 1 as seven, null, 1 / 0 as n, 'a' like 'b%' as l;"),
        [
            column("one", int(1), ScalarType::Int),
            column("'x'", text("x"), ScalarType::Text),
            column("seven", int(7), ScalarType::Int),
            column("NULL", None, ScalarType::Bool),
            column("n", None, ScalarType::Int),
            column("l", Some(OwnedScalar::Bool(false)), ScalarType::Bool),
        ]
    );
    for sql in
        ["select year", "select *", "select key", "select 1 where true", "select ?", "select version()", "select"]
    {
        error(sql);
    }
}

#[test]
fn what_the_drive_does_not_do_is_refused_in_words() {
    for (sql, word, sentence) in [
        ("insert into papers values (1)", "insert", "put items with DoPut"),
        ("CREATE TABLE x (a int)", "CREATE", "tapetum keyspace create"),
        ("drop table papers", "drop", "tapetum keyspace drop"),
        ("update papers set year = 1", "update", "DoPut"),
        ("delete from papers", "delete", "tapetum delete"),
        ("with x as (select 1) select * from x", "with", "DuckDB, Polars or Ray"),
        ("begin", "begin", "no transactions"),
        ("explain select 1", "explain", "tapetum scan --explain"),
        ("show tables", "show", "GetTables"),
        ("select * from a join b on a.x = b.x", "join", "DuckDB, Polars or Ray join"),
        ("select * from a left outer join b using (x)", "join", "DuckDB, Polars or Ray join"),
        ("select * from a, b", ",", "DuckDB, Polars or Ray join"),
        ("select * from (select 1)", "select", "queries within queries"),
        ("select * from (a)", "(", "queries within queries"),
        ("select (select max(x) from b) from a", "select", "queries within queries"),
        ("select x from a where exists (select 1)", "select", "queries within queries"),
        ("select x from a where x in (select y from b)", "select", "queries within queries"),
        ("select x from a union all select y from b", "union", "unions"),
        ("select 1 except (select 2)", "except", "unions"),
        ("select rank() over (order by x) from a", "over", "window functions"),
        ("select distinct on (x) y from a", "distinct", "distinct on"),
        ("select x from a limit 1 offset 5", "5", "where id > 100"),
    ] {
        let error = error(sql);
        assert_eq!(error.word, word, "{sql}: {error}");
        assert!(matches!(error.problem, StatementProblem::Refused(_)), "{sql}: {error}");
        assert!(error.to_string().contains(sentence), "{sql}: {error}");
    }
    for (sql, column, word, sentence) in [
        ("", 0, "", "there is no statement"),
        (" -- x", 0, "", "there is no statement"),
        ("papers", 1, "papers", "begins with select"),
        ("select x from a; select y from b", 16, ";", "one statement at a time"),
        ("select x from", 14, "", "from names a keyspace"),
        ("select x from 'a'", 15, "'a'", "from names a keyspace"),
        ("select x from my-keyspace", 17, "-", "double quotes"),
        ("select x from a b c", 19, "c", "behind the keyspace"),
        ("select x from read_csv('x')", 23, "(", "no functions that make tables"),
        ("select x where x = 1 from a", 22, "from", "in this order"),
        ("select x from a where (x = 1", 23, "(", "never closed"),
        ("select x) from a", 9, ")", "closes none"),
        ("select x from a where x = 'b", 27, "'b", "Unterminated string literal"),
        ("select x from a where x = ? and y = $1", 37, "$", "all as $1"),
        ("select x from a where x = $0", 27, "$", "as ? or $1"),
        ("select x ? from a", 10, "?", "where a value may"),
        ("select x from a where x = timestamp $1", 37, "$", "where a value may"),
        ("select x from a where x = ?1", 27, "?", "as ? or $1"),
        ("select x from a order by (?) desc", 27, "?", "same for all records"),
        ("select x from a group by y, $1", 29, "$", "same for all records"),
    ] {
        let error = error(sql);
        assert_eq!((error.column, &error.word[..]), (column, word), "{sql}: {error}");
        assert!(error.to_string().contains(sentence), "{sql}: {error}");
    }
}

#[test]
fn long_and_deep_statements_are_refused_at_once() {
    let long = format!("select x from a where x in ({})", "1,".repeat(5 << 20));
    assert_eq!(error(&long).problem, StatementProblem::TooLong);
    for deep in ["(", "select (", "not ", "- ", "case when ", "["] {
        let sql = format!("select x from a where {}", deep.repeat(10_000).chars().take(60_000).collect::<String>());
        if let Ok(statement) = Statement::parse(&sql) {
            let Statement::Select(statement) = statement else { panic!("{deep}") };
            let format = Format::parse("key: x u32be").unwrap();
            assert!(compile(&format, &statement.words.text(MisfitPolicy::Fail)).is_err(), "{deep}");
        }
    }
    assert!(matches!(error(&format!("select {}", "(".repeat(10_000))).problem, StatementProblem::Query(_)));
    // Each place of a parameter takes the value once more.
    let many = select(&format!("select x from a where x in ({}$1)", "$1,".repeat(20_000)));
    assert_eq!(many.parameters, 1);
    let long = text(&"x".repeat(1 << 20));
    assert!(matches!(many.bind(&[long]).unwrap_err().problem, StatementProblem::ValuesTooLong(_)));
    assert!(many.unbound_words().condition.unwrap().contains("NULL,NULL"));
}

#[test]
fn parameters_are_bound_in_every_clause() {
    let two = answered(
        "select year / ? as decade, count(*) from papers where venue <> ? group by year / ? having count(*) > ? \
         order by decade desc limit ?",
        &[int(10), text(""), int(10), int(0), int(2)],
    );
    assert_eq!(two, [[int(202), int(1)], [int(200), int(3)]]);
    assert_eq!(
        answered("select p.id from papers p where p.venue like $1 and id>-$2", &[text("it'_"), int(-5)]),
        [[int(6)]]
    );
    assert_eq!(answered("select id from papers where id=?and year>?", &[int(2), int(-2)]), [[int(2)]]);
    assert_eq!(answered("select id from papers where id in (?,?)", &[int(2), None]), [[int(2)]]);
    assert_eq!(answered("select id from papers where id -? = 1", &[int(-5)]).len(), 0);
    let problem =
        |values: &[Option<OwnedScalar>]| select("select id from a where id = ?").bind(values).unwrap_err().problem;
    assert_eq!(problem(&[]), StatementProblem::Values { given: 0, parameters: 1 });
}

/// The columns of a result and their types are known before values are.
#[test]
fn names_of_columns_do_not_depend_on_values() {
    let format = Format::parse("key: id u32be; value: year u16le, venue string8").unwrap();
    let columns = |words: &StatementWords| {
        let compiled =
            compile(&format, &words.text(MisfitPolicy::Fail)).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        compiled.columns.iter().map(|column| (column.name.clone(), column.scalar_type)).collect::<Vec<_>>()
    };
    let statement = select(
        "select id+?, venue like ? as l, year * $$ from a where venue like ? and (? + ?) < year order by id + ? limit ?"
            .replace("$$", "(? - id)")
            .as_str(),
    );
    let bound = statement.bind(&[int(1), text("x%"), int(2), text("a"), int(1), int(7), int(-3), int(5)]).unwrap();
    let names = [("id+?", ScalarType::Int), ("l", ScalarType::Bool), ("year * (? - id)", ScalarType::Int)];
    assert_eq!(columns(&bound), names.map(|(name, of)| (name.into(), of)));
    assert_eq!(columns(&statement.unbound_words()), columns(&bound));
    let distinct = select("select distinct year - ?, $$ from a".replace(", $$", "").as_str());
    assert_eq!(columns(&distinct.bind(&[int(1)]).unwrap()), [("year - ?".into(), ScalarType::Int)]);
    let grouped = select("select year % ?, count(*) from a group by 1 order by 2 desc");
    assert_eq!(columns(&grouped.bind(&[int(7)]).unwrap())[0].0, "year % ?");
}

#[test]
fn a_bound_value_is_that_value() {
    let values = [
        OwnedScalar::Bool(true),
        OwnedScalar::Bool(false),
        OwnedScalar::Int(0),
        OwnedScalar::Int(-1),
        OwnedScalar::Int(i64::MIN),
        OwnedScalar::Int(i64::MAX),
        OwnedScalar::Unsigned(1 << 63),
        OwnedScalar::Unsigned(u64::MAX),
        OwnedScalar::Float(0.1),
        OwnedScalar::Float(-1.5e-300),
        OwnedScalar::Float(1e300),
        OwnedScalar::Float(123_456_789_012_345_680.0),
        OwnedScalar::Float(f64::MIN_POSITIVE / 4.0),
        OwnedScalar::Float(f64::MAX),
        OwnedScalar::Float(f64::NAN),
        OwnedScalar::Float(f64::INFINITY),
        OwnedScalar::Float(f64::NEG_INFINITY),
        OwnedScalar::Timestamp(0),
        OwnedScalar::Timestamp(-1),
        OwnedScalar::Timestamp(1_795_671_900_000_001),
        OwnedScalar::Timestamp(i64::MIN),
        OwnedScalar::Timestamp(i64::MAX),
        OwnedScalar::Text("".into()),
        OwnedScalar::Text("it's ''quoted'' \"and\" -- \\ /* */ ? $1 \0 \n\r é日%_".into()),
        OwnedScalar::Bytes([].into()),
        OwnedScalar::Bytes((0..=255).collect()),
    ];
    for value in values {
        is_bound_as_itself(&value);
    }
}

/// A record holds the value; a comparison with the bound value finds it, and one that asks for others does not.
fn is_bound_as_itself(value: &OwnedScalar) {
    let of = value.as_scalar().scalar_type();
    let statement = select("select ? as v from a where x=? and not x<>? and x in (?)");
    let words =
        statement.bind(&[Some(value.clone()), Some(value.clone()), Some(value.clone()), Some(value.clone())]).unwrap();
    let (field, bytes) = match value.as_scalar() {
        Scalar::Bool(value) => ("bool", vec![u8::from(value)]),
        Scalar::Int(value) => ("i64le", value.to_le_bytes().to_vec()),
        Scalar::Unsigned(value) => ("u64le", value.to_le_bytes().to_vec()),
        Scalar::Float(value) => ("f64le", value.to_le_bytes().to_vec()),
        Scalar::Timestamp(value) => ("micros64le", value.to_le_bytes().to_vec()),
        Scalar::Text(value) => ("string", value.as_bytes().to_vec()),
        Scalar::Bytes(value) => ("bytes", value.to_vec()),
    };
    let format = Format::parse(&format!("key: k bytes; value: x {field}")).unwrap();
    let compiled =
        compile(&format, &words.text(MisfitPolicy::Fail)).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    assert_eq!(compiled.columns[0].scalar_type, of, "{words:?}");
    let mut batch = RowBatch::new();
    batch.push(b"k", &bytes);
    let found = run(compiled, &batch);
    assert_eq!(found.len(), 1, "{words:?}");
    let found = found[0][0].clone().unwrap();
    assert!(
        found.as_scalar().compare(value.as_scalar()).is_some_and(std::cmp::Ordering::is_eq),
        "{words:?}: {found:?}"
    );
}

proptest::proptest! {
    #[test]
    fn any_bound_value_is_that_value(text in ".{0,20}", bytes: Vec<u8>, int: i64, unsigned: u64, bits: u64, micros: i64) {
        for value in [
            OwnedScalar::Text(text.into()),
            OwnedScalar::Bytes(bytes.into()),
            OwnedScalar::Int(int),
            OwnedScalar::Unsigned(unsigned | 1 << 63),
            OwnedScalar::Float(f64::from_bits(bits)),
            OwnedScalar::Timestamp(micros),
            OwnedScalar::Timestamp(micros >> 8),
        ] {
            is_bound_as_itself(&value);
        }
    }
}

#[test]
fn null_is_bound_as_unknown() {
    for condition in
        ["year = ?", "year <> ?", "venue like ?", "not venue like ?", "? like 'x%'", "year in (?)", "? + ? = id"]
    {
        let values = vec![None; condition.matches('?').count()];
        assert_eq!(
            answered(&format!("select id from papers where {condition}"), &values),
            Vec::<Vec<_>>::new(),
            "{condition}"
        );
    }
    assert_eq!(answered("select id from papers where pages is ? and id < ?", &[None, int(3)]), [[int(2)]]);
}

#[test]
fn an_error_in_a_clause_is_the_compilers() {
    let format = Format::parse("key: id u32be").unwrap();
    let statement = select("select id from papers where papers.yaer = 1");
    let error = compile(&format, &statement.words.text(MisfitPolicy::Fail)).map(|_| ()).unwrap_err();
    assert_eq!((error.clause, error.column, &error.word[..]), (Clause::Where, 1, "yaer"));
}
