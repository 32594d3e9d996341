package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"regexp"
	"strings"

	"parley/store"
)

// prices are what models cost, by the names that runs give them.
type prices map[string]store.Price

// parsePrices reads PARLEY_PRICES: JSON, or else the name of a file that holds it.
func parsePrices(setting string) (prices, error) {
	raw := []byte(strings.TrimSpace(setting))
	if len(raw) == 0 {
		return prices{}, nil
	}
	if raw[0] != '{' {
		var err error
		if raw, err = os.ReadFile(string(raw)); err != nil {
			return nil, err
		}
	}
	var given map[string]*struct {
		Input  *json.Number `json:"input"`
		Output *json.Number `json:"output"`
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&given); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something after the JSON object")
	}
	of := prices{}
	for model, p := range given {
		if p == nil || p.Input == nil || p.Output == nil {
			return nil, fmt.Errorf("%s: input and output are required", model)
		}
		input, err := millionths(*p.Input)
		if err != nil {
			return nil, fmt.Errorf("%s: input: %w", model, err)
		}
		output, err := millionths(*p.Output)
		if err != nil {
			return nil, fmt.Errorf("%s: output: %w", model, err)
		}
		of[model] = store.Price{Input: input, Output: output}
	}
	return of, nil
}

const maxPrice = 10_000 // for a million tokens: beyond, what a run costs might pass an int64

// decimal is how a price is written: as people do, without an exponent.
var decimal = regexp.MustCompile(`^\d{1,5}(\.\d{1,6})?$`)

// millionths reads a price to the last digit.
func millionths(n json.Number) (int64, error) {
	if !decimal.MatchString(n.String()) {
		return 0, fmt.Errorf("%s is no price: a number from 0 to %d with 6 decimals at most", n, maxPrice)
	}
	value, _ := new(big.Rat).SetString(n.String())
	value.Mul(value, big.NewRat(1_000_000, 1))
	if m := value.Num().Int64(); m <= maxPrice*1_000_000 {
		return m, nil
	}
	return 0, fmt.Errorf("%s is more than %d", n, maxPrice)
}

// snapshot is the date with which providers tell versions of a model apart: they answer with it to who asked without.
var snapshot = regexp.MustCompile(`-(\d{4}-\d{2}-\d{2}|\d{8})$`)

// of is the price of a model: its own, or else that of the model of which it is a dated snapshot.
func (p prices) of(model string) (store.Price, bool) {
	price, ok := p[model]
	if !ok {
		price, ok = p[snapshot.ReplaceAllString(model, "")]
	}
	return price, ok
}
