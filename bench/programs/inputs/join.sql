-- Orders and customers in memory, joined in random order for few customers and once for all.
pragma page_size = 4096;
pragma temp_store = memory;
create table orders(id integer primary key, customer integer, note blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 380000)
  insert into orders select i, i * 7919 % 60000, zeroblob(430 + i % 100) from n;
create index by_customer on orders(customer);
with recursive q(i) as (select 1 union all select i + 1 from q where i < 60000)
  select sum(length(note)), sum(orders.id) from q join orders on customer =
    case when i % 10 then i * 31 % 3000 else i * 31 % 60000 end;
