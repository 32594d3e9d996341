package store

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"
)

// Changing the secret key. A start whose sealer has older keys seals again, with the newest, whatever an older one has sealed:
// the endpoints' secrets, the agents' keys and headers and, last, the check value. Each batch is a transaction, so a start that is
// interrupted is finished by the next one; and a value that another server changes meanwhile is left to it.

// resealedAtOnce is how many rows a transaction: other servers may be at work.
const resealedAtOnce = 100

func (s *Store) reseal(ctx context.Context, check []byte) error {
	if len(s.sealer.keys) == 1 {
		return nil
	}
	for _, of := range []func(ctx context.Context, tx bun.Tx, after string) (string, error){s.resealEndpoints, s.resealAgents} {
		for after, more := "", true; more; {
			err := s.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) (err error) {
				after, err = of(ctx, tx, after)
				return err
			})
			if err != nil {
				return fmt.Errorf("seal with the new secret key: %w", err)
			}
			more = after != ""
		}
	}
	if !s.sealer.stale(check) {
		return nil
	}
	_, err := s.db.NewRaw("UPDATE settings SET value = ? WHERE name = ?", s.sealer.Seal([]byte(checkPlain), checkName), checkName).Exec(ctx)
	if err != nil {
		return fmt.Errorf("seal the secret key's check value: %w", err)
	}
	return nil
}

// again is sealed anew, if need be.
func (s *Sealer) again(sealed []byte, place string) ([]byte, bool, error) {
	if len(sealed) == 0 || !s.stale(sealed) {
		return sealed, false, nil
	}
	plain, err := s.Open(sealed, place)
	if err != nil {
		return nil, false, fmt.Errorf("open the secret of %s: %w", place, err)
	}
	return s.Seal(plain, place), true, nil
}

// locked is a query of rows that are about to be changed, beside other servers.
func (s *Store) locked(tx bun.Tx) *bun.SelectQuery {
	if s.remote() {
		return tx.NewSelect().For("UPDATE")
	}
	return tx.NewSelect()
}

// resealEndpoints seals the secrets of the endpoints after an id, and returns the last one's; empty when there are no more.
func (s *Store) resealEndpoints(ctx context.Context, tx bun.Tx, after string) (string, error) {
	var rows []struct {
		ID      string `bun:"id"`
		Secrets []byte `bun:"secrets"`
	}
	err := s.locked(tx).TableExpr("endpoints").Column("id", "secrets").Where("id > ?", after).Order("id").Limit(resealedAtOnce).Scan(ctx, &rows)
	if err != nil || len(rows) == 0 {
		return "", err
	}
	for _, p := range rows {
		sealed, changed, err := s.sealer.again(p.Secrets, p.ID)
		if err != nil {
			return "", err
		}
		if changed {
			if _, err := tx.NewRaw("UPDATE endpoints SET secrets = ? WHERE id = ?", sealed, p.ID).Exec(ctx); err != nil {
				return "", err
			}
		}
	}
	return rows[len(rows)-1].ID, nil
}

// resealAgents does the same for what the agents keep secret. Agents of several businesses may share an id.
func (s *Store) resealAgents(ctx context.Context, tx bun.Tx, after string) (string, error) {
	var ids []string
	err := tx.NewRaw("SELECT DISTINCT id FROM agents WHERE id > ? ORDER BY id LIMIT ?", after, resealedAtOnce).Scan(ctx, &ids)
	if err != nil || len(ids) == 0 {
		return "", err
	}
	var rows []*Agent
	err = s.locked(tx).Model(&rows).Column("id", "business_id", "model", "tools", "mcp_servers").Where("id IN (?)", bun.List(ids)).Order("id", "business_id").Scan(ctx)
	if err != nil {
		return "", err
	}
	for _, a := range rows {
		changed, err := s.resealAgent(a)
		if err != nil {
			return "", err
		}
		if changed {
			_, err := tx.NewUpdate().Model(a).Column("model", "tools", "mcp_servers").Where("id = ? AND business_id = ?", a.ID, a.BusinessID).Exec(ctx)
			if err != nil {
				return "", err
			}
		}
	}
	return ids[len(ids)-1], nil
}

// resealAgent seals all that an agent keeps secret: its models' keys, and the headers of its tools and MCP servers.
func (s *Store) resealAgent(a *Agent) (changed bool, err error) {
	again := func(sealed *[]byte, place string) {
		if err != nil {
			return
		}
		var is bool
		if *sealed, is, err = s.sealer.again(*sealed, place); is {
			changed = true
		}
	}
	for m := &a.Model; m != nil; m = m.Fallback {
		again(&m.SealedKey, a.ID)
	}
	for i := range a.Tools {
		again(&a.Tools[i].SealedHeaders, placeOfTool(a, a.Tools[i].Name))
	}
	for i := range a.McpServers {
		again(&a.McpServers[i].SealedHeaders, placeOfMcp(a, a.McpServers[i].Name))
	}
	return changed, err
}
