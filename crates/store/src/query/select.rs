//! What is selected: columns, or groups and their aggregates; and in which order.

use super::compile::Compiler;
use super::{Clause, GroupOrder, QueryProblem, QueryText, QueryTextError, parse};
use sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, OrderByExpr,
    OrderBySort, SelectItem, Spanned, Value,
};
use sqlparser::tokenizer::Span;
use tapetum_kernels::scan::aggregate::AggregateKind;
use tapetum_kernels::scan::program::Register;
use tapetum_kernels::scan::query::{Aggregate, QueryOutput, RowOrder};
use tapetum_kernels::scan::top::TOP_ROWS_MAX;

const GROUPED_BY_FIELDS: &str = "records are grouped by a field or what is computed of one";

pub(super) struct Selected {
    pub output: QueryOutput,
    /// Name, and place in the query's result.
    pub columns: Vec<(String, usize)>,
    pub group_order: GroupOrder,
}

#[derive(PartialEq)]
enum Item {
    Value(Register),
    Aggregate(Aggregate),
}

struct NamedItem {
    name: String,
    /// As it was written, to be found again by `order by`.
    written: String,
    item: Item,
    span: Span,
}

impl<'a> Compiler<'a> {
    pub(super) fn select(&mut self, text: &QueryText<'a>) -> Result<Selected, QueryTextError> {
        (self.clause, self.text) = (Clause::Select, text.select);
        let mut items = Vec::new();
        for item in parse::select_items(Clause::Select, text.select)? {
            self.select_item(&item, &mut items)?;
        }
        if items.is_empty() {
            return Err(self.error(Span::empty(), QueryProblem::NothingSelected));
        }
        let is_grouped = text.group_by.is_some() || items.iter().any(|item| matches!(item.item, Item::Aggregate(_)));
        if is_grouped { self.groups(text, items) } else { self.rows(text, items) }
    }

    fn select_item(&mut self, item: &SelectItem, items: &mut Vec<NamedItem>) -> Result<(), QueryTextError> {
        let (tree, name) = match item {
            SelectItem::UnnamedExpr(tree) => (tree, None),
            SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias.value.clone())),
            SelectItem::Wildcard(_) => {
                for field in self.format.fields() {
                    let tree = Expr::Identifier(Ident::new(&*field.name));
                    items.push(self.named(&tree, None)?);
                }
                return Ok(());
            }
            _ => {
                let problem = QueryProblem::Unsupported("an expression is selected, with a name behind as, or *");
                return Err(self.error(item.span(), problem));
            }
        };
        items.push(self.named(tree, name)?);
        Ok(())
    }

    fn named(&mut self, tree: &Expr, name: Option<String>) -> Result<NamedItem, QueryTextError> {
        let written = tree.to_string();
        let item = match tree {
            Expr::Function(function) if is_aggregate(function) => Item::Aggregate(self.aggregate(function)?),
            tree => {
                let operand = self.expression(tree)?;
                Item::Value(self.register(operand)?)
            }
        };
        let name = name.unwrap_or_else(|| match tree {
            Expr::Identifier(name) => name.value.clone(),
            _ => written.clone(),
        });
        Ok(NamedItem { name, written, item, span: tree.span() })
    }

    fn aggregate(&mut self, function: &Function) -> Result<Aggregate, QueryTextError> {
        let span = function.span();
        let kind = aggregate_kind(function).unwrap_or(AggregateKind::Count);
        let is_plain = function.filter.is_none()
            && function.over.is_none()
            && function.within_group.is_empty()
            && function.null_treatment.is_none()
            && function.parameters == FunctionArguments::None;
        let argument = match &function.args {
            FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses })
                if is_plain && clauses.is_empty() =>
            {
                match &args[..] {
                    [FunctionArg::Unnamed(argument)] => argument,
                    _ => return Err(self.error(span, QueryProblem::AggregateArgument("none"))),
                }
            }
            _ => {
                let problem = QueryProblem::Unsupported("an aggregate has one argument, and nothing else");
                return Err(self.error(span, problem));
            }
        };
        match argument {
            FunctionArgExpr::Wildcard if kind == AggregateKind::Count => Ok(Aggregate { kind, register: None }),
            FunctionArgExpr::Expr(tree) => {
                let operand = self.expression(tree)?;
                let span = operand.span;
                let register = self.register(operand)?;
                let of = self.type_of(register);
                match kind.result_type(of) {
                    Some(_) => Ok(Aggregate { kind, register: Some(register) }),
                    None => Err(self.error(span, QueryProblem::AggregateArgument(of.name()))),
                }
            }
            _ => Err(self.error(span, QueryProblem::AggregateArgument("*"))),
        }
    }

    fn rows(&mut self, text: &QueryText<'a>, items: Vec<NamedItem>) -> Result<Selected, QueryTextError> {
        let mut columns: Vec<Register> = Vec::new();
        let mut named = Vec::new();
        for (place, NamedItem { name, item, .. }) in items.iter().enumerate() {
            let Item::Value(register) = item else { unreachable!("rows have no aggregates") };
            columns.push(*register);
            named.push((name.clone(), place));
        }
        let order = match text.order_by {
            None => None,
            Some(order_by) => {
                let (order, is_descending) = self.order(order_by)?;
                let (by, span) = match self.ordered_column(&order.expr, &items)? {
                    Some(column) => (columns[column], order.expr.span()),
                    None => self.ordered_expression(&order.expr, items.len())?,
                };
                if text.limit.is_none_or(|limit| limit > TOP_ROWS_MAX as u64) {
                    return Err(self.error(span, QueryProblem::OrderNeedsLimit(TOP_ROWS_MAX)));
                }
                Some(RowOrder { by, is_descending })
            }
        };
        let output = QueryOutput::Rows { columns, order, limit: text.limit };
        Ok(Selected { output, columns: named, group_order: GroupOrder::default() })
    }

    fn groups(&mut self, text: &QueryText<'a>, items: Vec<NamedItem>) -> Result<Selected, QueryTextError> {
        let keys = match text.group_by {
            Some(group_by) => self.keys(group_by)?,
            None => Vec::new(),
        };
        (self.clause, self.text) = (Clause::Select, text.select);
        let (mut aggregates, mut columns) = (Vec::new(), Vec::new());
        for NamedItem { name, item, span, .. } in &items {
            let place = match item {
                Item::Aggregate(aggregate) => {
                    aggregates.push(*aggregate);
                    keys.len() + aggregates.len() - 1
                }
                Item::Value(register) => {
                    let place = keys.iter().position(|key| key == register);
                    place.ok_or_else(|| self.error(*span, QueryProblem::NotGrouped))?
                }
            };
            columns.push((name.clone(), place));
        }
        let by = match text.order_by {
            None => None,
            Some(order_by) => {
                let (order, is_descending) = self.order(order_by)?;
                let written = order.expr.to_string();
                let column = self.ordered_column(&order.expr, &items)?;
                let found = column.or_else(|| items.iter().position(|item| item.written == written));
                let found = found.ok_or_else(|| self.error(order.expr.span(), QueryProblem::OrderOfGroups))?;
                Some((columns[found].1, is_descending))
            }
        };
        let group_order = GroupOrder { by, limit: text.limit };
        Ok(Selected { output: QueryOutput::Groups { keys, aggregates }, columns, group_order })
    }

    fn keys(&mut self, text: &'a str) -> Result<Vec<Register>, QueryTextError> {
        (self.clause, self.text) = (Clause::GroupBy, text);
        let mut keys = Vec::new();
        for tree in parse::expressions(Clause::GroupBy, text)? {
            let operand = self.expression(&tree)?;
            let span = operand.span;
            let key = self.register(operand)?;
            // A number is refused too: it is no column's place here, as it is in SQL.
            if self.is_constant(key) {
                return Err(self.error(span, QueryProblem::Unsupported(GROUPED_BY_FIELDS)));
            }
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// The selected column that an order names: by its place, from 1 on, or by its name. As in SQL, that wins over a field's.
    fn ordered_column(&self, tree: &Expr, items: &[NamedItem]) -> Result<Option<usize>, QueryTextError> {
        match tree {
            Expr::Nested(inner) => self.ordered_column(inner, items),
            Expr::Value(value) => {
                let place = match &value.value {
                    Value::Number(digits, _) => digits.parse::<usize>().ok().and_then(|place| place.checked_sub(1)),
                    _ => None,
                };
                let place = place.filter(|place| *place < items.len());
                let no_place = || self.error(value.span, QueryProblem::OrderConstant(items.len()));
                place.map(Some).ok_or_else(no_place)
            }
            Expr::Identifier(name) => {
                let mut named = items.iter().enumerate().filter(|(_, item)| item.name == name.value);
                let Some((found, first)) = named.next() else { return Ok(None) };
                match named.any(|(_, item)| item.item != first.item) {
                    true => Err(self.error(name.span, QueryProblem::OrderByTwo)),
                    false => Ok(Some(found)),
                }
            }
            _ => Ok(None),
        }
    }

    /// An order by what is computed of a record's fields.
    fn ordered_expression(&mut self, tree: &Expr, columns: usize) -> Result<(Register, Span), QueryTextError> {
        let operand = self.expression(tree)?;
        let span = operand.span;
        let by = self.register(operand)?;
        match self.is_constant(by) {
            true => Err(self.error(span, QueryProblem::OrderConstant(columns))),
            false => Ok((by, span)),
        }
    }

    /// The only order, and whether it goes from the greatest to the least.
    fn order(&mut self, text: &'a str) -> Result<(OrderByExpr, bool), QueryTextError> {
        (self.clause, self.text) = (Clause::OrderBy, text);
        let mut orders = parse::orders(Clause::OrderBy, text)?;
        let order = match (orders.pop(), orders.is_empty()) {
            (Some(order), true) => order,
            (last, _) => {
                let span = last.map_or(Span::empty(), |last| last.expr.span());
                return Err(self.error(span, QueryProblem::OneOrder));
            }
        };
        let is_descending = match (&order.options.sort, order.options.nulls_first, &order.with_fill) {
            (None | Some(OrderBySort::Asc), None | Some(false), None) => false,
            (Some(OrderBySort::Desc), None | Some(false), None) => true,
            _ => return Err(self.error(order.expr.span(), QueryProblem::OneOrder)),
        };
        Ok((order, is_descending))
    }
}

fn aggregate_kind(function: &Function) -> Option<AggregateKind> {
    Some(match &function.name.to_string().to_ascii_lowercase()[..] {
        "count" => AggregateKind::Count,
        "sum" => AggregateKind::Sum,
        "min" => AggregateKind::Min,
        "max" => AggregateKind::Max,
        "avg" => AggregateKind::Average,
        _ => return None,
    })
}

pub(super) fn is_aggregate(function: &Function) -> bool {
    aggregate_kind(function).is_some()
}
