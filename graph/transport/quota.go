package transport

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// What subscriptions may keep: their documents and their variables. Equal documents that are in the cache are one.
const (
	socketBytes     = 1 << 20
	credentialBytes = 16 << 20
	businessBytes   = 64 << 20

	nodeBytes  = 256 // of a parsed document: a field, an argument or a value
	valueBytes = 32  // of a variable's value, beside its text
)

// Quota bounds what WebSockets and event streams hold at a time, on this server.
type Quota struct {
	Of            func(ctx context.Context) (credential, business string) // by the context that operations run in; empty: not bounded
	Sockets       int                                                     // WebSockets and event streams of a business
	Subscriptions int                                                     // of a business

	open atomic.Int64 // subscriptions

	mu sync.Mutex // guards what follows, and every account
	of map[string]*account
}

// account is what one socket, credential or business holds.
type account struct {
	limit, bytes           int
	sockets, subscriptions int
	documents              map[*ast.QueryDocument]int // how many subscriptions keep each
}

const reasonTooMany = "this business has as many connections open as it may: close one first"

// connect counts a connection in, until leave is called. It is false if there are too many.
func (q *Quota) connect(ctx context.Context) (leave func(), ok bool) {
	_, business := q.who(ctx)
	if business == "" {
		return func() {}, true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.account(business, businessBytes)
	if all.sockets >= q.Sockets {
		q.drop(business, all)
		return nil, false
	}
	all.sockets++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		all.sockets--
		q.drop(business, all)
	}, true
}

// subscribe counts in a subscription and what it keeps, until leave is called; on its socket, too.
func (q *Quota) subscribe(ctx context.Context, socket *account, op *graphql.OperationContext) (leave func(), refused *gqlerror.Error) {
	credential, business := q.who(ctx)
	if business == "" {
		return func() {}, nil
	}
	document, variables := documentSize(op.Doc), valueSize(op.Variables)
	q.mu.Lock()
	defer q.mu.Unlock()
	one, all := q.account(credential, credentialBytes), q.account(business, businessBytes)
	socket.limit = socketBytes
	accounts := []*account{socket, one, all}
	drop := func() { q.drop(credential, one); q.drop(business, all) }
	if all.subscriptions >= q.Subscriptions {
		drop()
		return nil, limitReached("this business has as many subscriptions as it may: end one first")
	}
	for _, a := range accounts {
		size := variables
		if a.documents[op.Doc] == 0 {
			size += document
		}
		if a.bytes+size > a.limit {
			drop()
			return nil, limitReached("the subscriptions keep as much as they may, with their documents and variables: end one first, or ask with less")
		}
	}
	q.open.Add(1)
	for _, a := range accounts {
		a.subscriptions++
		a.bytes += variables
		if a.documents == nil {
			a.documents = map[*ast.QueryDocument]int{}
		}
		if a.documents[op.Doc]++; a.documents[op.Doc] == 1 {
			a.bytes += document
		}
	}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.open.Add(-1)
		for _, a := range accounts {
			a.subscriptions--
			a.bytes -= variables
			if a.documents[op.Doc]--; a.documents[op.Doc] == 0 {
				delete(a.documents, op.Doc)
				a.bytes -= document
			}
		}
		drop()
	}, nil
}

// Open is how many subscriptions run.
func (q *Quota) Open() int64 { return q.open.Load() }

func (q *Quota) who(ctx context.Context) (credential, business string) {
	if q == nil {
		return "", ""
	}
	return q.Of(ctx)
}

func (q *Quota) account(of string, limit int) *account {
	if q.of == nil {
		q.of = map[string]*account{}
	}
	if q.of[of] == nil {
		q.of[of] = &account{limit: limit}
	}
	return q.of[of]
}

// drop forgets an account that holds nothing.
func (q *Quota) drop(of string, a *account) {
	if a.sockets == 0 && a.subscriptions == 0 && q.of[of] == a {
		delete(q.of, of)
	}
}

func limitReached(sentence string) *gqlerror.Error {
	err := refusal(codeBadUserInput, sentence, fault{[]any{}, sentence, "limit_reached", nil})
	err.Extensions["reason"] = "limit_reached"
	return err
}

// documentSize is what a parsed document takes, with its text.
func documentSize(doc *ast.QueryDocument) int {
	nodes := 0
	var value func(v *ast.Value)
	value = func(v *ast.Value) {
		if v == nil {
			return
		}
		nodes++
		for _, child := range v.Children {
			value(child.Value)
		}
	}
	arguments := func(list ast.ArgumentList, directives ast.DirectiveList) {
		for _, a := range list {
			value(a.Value)
		}
		for _, d := range directives {
			nodes++
			for _, a := range d.Arguments {
				value(a.Value)
			}
		}
	}
	var selections func(set ast.SelectionSet)
	selections = func(set ast.SelectionSet) {
		for _, selection := range set {
			nodes++
			switch s := selection.(type) {
			case *ast.Field:
				arguments(s.Arguments, s.Directives)
				selections(s.SelectionSet)
			case *ast.InlineFragment:
				arguments(nil, s.Directives)
				selections(s.SelectionSet)
			case *ast.FragmentSpread:
				arguments(nil, s.Directives)
			}
		}
	}
	text := 0
	for _, op := range doc.Operations {
		text = len(op.Position.Src.Input)
		for _, v := range op.VariableDefinitions {
			nodes++
			value(v.DefaultValue)
		}
		arguments(nil, op.Directives)
		selections(op.SelectionSet)
	}
	for _, f := range doc.Fragments {
		nodes++
		arguments(nil, f.Directives)
		selections(f.SelectionSet)
	}
	return text + nodes*nodeBytes
}

// valueSize is what a variable's value takes.
func valueSize(v any) int {
	switch v := v.(type) {
	case string:
		return valueBytes + len(v)
	case map[string]any:
		size := valueBytes
		for name, value := range v {
			size += len(name) + valueBytes + valueSize(value)
		}
		return size
	case []any:
		size := valueBytes
		for _, value := range v {
			size += valueSize(value)
		}
		return size
	}
	size := valueBytes
	switch r := reflect.ValueOf(v); r.Kind() { // what gqlparser has coerced
	case reflect.String: // a number, too, as it stands
		size += r.Len()
	case reflect.Slice:
		for i := range r.Len() {
			size += valueSize(r.Index(i).Interface())
		}
	}
	return size
}
