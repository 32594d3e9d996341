package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"parley/store"
)

// maintain opens the database beside a server that may be running on it, has a command do its work,
// and closes it.
func (s *Settings) maintain(ctx context.Context, work func(*store.Store) error) error {
	config := store.Config{URL: s.DatabaseURL}
	var err error
	if config.Sealer, err = s.sealer(); err != nil {
		return err
	}
	st, err := store.Open(ctx, config)
	if err != nil {
		return err
	}
	return errors.Join(work(st), st.Close())
}

// createBusiness is the command `business create`.
func createBusiness(ctx context.Context, cmd *command, stdout io.Writer) error {
	return cmd.maintain(ctx, func(st *store.Store) error {
		made, err := st.CreateBusiness(ctx, store.BusinessInput{Name: cmd.Business.Create.Name})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "business      %s\nAPI key       %s\naccess token  %s\n\nThese secrets are shown this once.\n",
			made.Business.ID, made.APIKey, made.Token)
		return err
	})
}

// createToken is the command `token create`. It makes no database: where none is, the settings lead
// to the wrong place.
func createToken(ctx context.Context, cmd *command, stdout io.Writer) error {
	if !store.IsPostgres(cmd.DatabaseURL) {
		if path := store.SQLitePath(cmd.DatabaseURL); !exists(path) {
			return fmt.Errorf("there is no database %s here: start the server first, or set PARLEY_DATABASE_URL as it is set for the server", path)
		}
	}
	return cmd.maintain(ctx, func(st *store.Store) error {
		business, err := businessOf(ctx, st, cmd.Token.Create.Business)
		if err != nil {
			return err
		}
		made, err := st.IssueAccessToken(business.ID, "parley token create", store.Scope(strings.ToLower(cmd.Token.Create.Scope)))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "business      %s (%s)\naccess token  %s (%s)\nsign in at    %s\n\nThe token is shown this once, and the link holds it.\n",
			business.ID, business.Name, made.Secret, cmd.Token.Create.Scope, signIn(address(cmd.Addr), made.Secret))
		return err
	})
}

// mostNamed is how many businesses are named to somebody who has to choose.
const mostNamed = 10

// businessOf is the business with an id, or, without one, the only business there is.
func businessOf(ctx context.Context, st *store.Store, id string) (*store.Business, error) {
	if id != "" {
		return st.Business(ctx, id)
	}
	all, err := st.Businesses(ctx, mostNamed+1)
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, errors.New("the database has no business yet: start the server, or run `parley business create`")
	case len(all) == 1:
		return all[0], nil
	}
	var names []string
	for _, b := range all[:min(len(all), mostNamed)] {
		names = append(names, fmt.Sprintf("%s (%s)", b.ID, b.Name))
	}
	if len(all) > mostNamed {
		names = append(names, "…")
	}
	return nil, fmt.Errorf("there are several businesses: choose one with --business: %s", strings.Join(names, ", "))
}

// signIn is a link to the page of a server, with a token behind its #, which no browser sends
// anywhere.
func signIn(address, token string) string { return address + "/#token=" + token }

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}
