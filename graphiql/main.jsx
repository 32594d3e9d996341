import React, { useState } from 'react';
import { createRoot } from 'react-dom/client';
import { GraphiQL } from 'graphiql';
import { createGraphiQLFetcher } from '@graphiql/toolkit';
import { parse } from 'graphql';
import { createClient } from 'graphql-ws';
import 'graphiql/style.css';
import './page.css';

// A sign-in link, which the server prints, leads here with an access token behind its #, which no browser sends anywhere. The
// token leaves the address bar at once, and is kept for as long as this browser tab is open.
const given = location.hash.slice(1).replace(/^token=/, '');
if (given) {
  sessionStorage.setItem('token', given);
  history.replaceState(null, '', location.pathname);
}
addEventListener('hashchange', () => location.reload());

let headers = { Authorization: `Bearer ${sessionStorage.getItem('token') ?? 'at_…'}` };
const tokenOf = (of) => of.Authorization ?? of.authorization ?? '';
const isSet = (token) => token !== '' && !token.includes('…');

// Subscriptions go over a WebSocket, which takes the credential of the headers editor at connection_init.
const fetch = createGraphiQLFetcher({
  url: '/graphql',
  wsClient: createClient({ url: location.origin.replace(/^http/, 'ws') + '/graphql', connectionParams: () => headers }),
});

const noToken = 'Put an access token into the headers below: `parley token create` makes one.\n\nThen run the query.';
const badToken = 'The token in the headers below opens nothing: it is mistyped, or was revoked.';
const noSchema = 'This token may not read the schema, so nothing is completed or checked while you type.\nOperations run all the same.\n\n' +
  'ADMIN tokens may; PARLEY_INTROSPECTION=all lets everyone.';

// For a moment after a change of tabs GraphiQL still speaks of the other tab's operation.
const inQuestion = ({ query, operationName }) => {
  try {
    const documentAST = parse(query);
    const names = documentAST.definitions.filter((d) => d.kind === 'OperationDefinition').map((d) => d.name?.value);
    return { documentAST, operationName: names.includes(operationName) ? operationName : names[0] };
  } catch {
    return { operationName }; // the server says what is wrong
  }
};

// A new fetcher has GraphiQL read the schema again: that is made when an operation comes with another token.
const newFetcher = (again) => {
  let read = '';
  return async (params, options) => {
    if (params.operationName === 'IntrospectionQuery') {
      read = tokenOf(headers);
      if (!isSet(read)) return noToken;
      const result = await fetch(params, { ...options, headers });
      if (result?.data?.__schema) return result;
      return result?.errors?.[0]?.extensions?.code === 'UNAUTHENTICATED' ? badToken : noSchema;
    }
    headers = options?.headers ?? {};
    if (tokenOf(headers) !== read) setTimeout(again);
    const { operationName, documentAST } = inQuestion(params);
    return fetch({ ...params, operationName }, { ...options, documentAST });
  };
};

const queries = {
  viewer: '# Who calls, and what happened last.\n# Ctrl-Enter runs it.\nquery Viewer {\n  viewer {\n    business { name }\n    scope\n  }\n  events(last: 5) {\n    nodes { type channel timestamp data }\n  }\n}\n',
  events: '# Every event, as it happens. Run it, then\n# chat from elsewhere: the server printed\n# a curl line for that at its first start.\nsubscription Events {\n  events {\n    cursor\n    node { type channel timestamp data }\n  }\n}\n',
  chat: 'mutation Chat {\n  chat(input: {\n    agentId: "demo"\n    channel: WHATSAPP\n    message: "When are you open on Saturday?"\n  }) {\n    reply\n    sessionId\n  }\n}\n',
};

function Page() {
  const [fetcher, setFetcher] = useState(() => newFetcher(again));
  function again() {
    setFetcher(() => newFetcher(again));
  }
  return (
    <GraphiQL
      fetcher={fetcher}
      defaultHeaders={JSON.stringify(headers, null, 2)}
      defaultEditorToolsVisibility="headers"
      defaultQuery={queries.viewer}
      defaultTabs={Object.values(queries).map((query) => ({ query, headers: null }))}
    />
  );
}

createRoot(document.getElementById('graphiql')).render(<Page />);
